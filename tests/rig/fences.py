"""fences: do kernels have a fence between what threads store and what TMA and wgmma read?

    python3 tests/rig/fences.py FILE.ptx...

Such stores are matrices (stmatrix), pairs of float32 (dq), chunks of zeros for what was not finite,
and copies that have been waited for while others go on (k04). Before the next barrier there must be
fence.proxy.async, or a reader may see what was there before. A GPU mostly shows the right numbers
without it, and compute-sanitizer does not ask for it. Lines are read in their order; where one is
missing, exits with 1.
"""
import re
import sys

STORE = re.compile(r'stmatrix|st\.shared\.v2\.f32|st\S*\.v4\.\w+\s.*\{(%\w+), \1, \1, \1\}'
                   r'|cp\.async\.wait_group 1;')
BARRIER = re.compile(r'\b(mbarrier\.arrive|bar\.(sync|arrive)|barrier\.cta)')
missing = 0
for path in sys.argv[1:]:
    store = None
    with open(path) as file:
        for line in file:
            if 'fence.proxy.async' in line or '.entry' in line:
                store = None
            elif STORE.search(line):
                store = store or line.strip()
            elif BARRIER.search(line) and store:
                print('FAILED %s: no fence between %s and %s' % (path, store, line.strip()))
                missing += 1
                store = None
sys.exit(missing > 0)
