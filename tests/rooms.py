"""rooms: who may know whom. No file includes a header of a room above its own or calls a function there, and neither
calls nor includes go round in a circle: each file can be read after those that it needs. And a stage program links
only what chapters up to its own have finished, and includes only their headers.

    python3 tests/rooms.py [--list]        (after ninja; --list also prints who needs whom)

Who calls whom is read from the objects that ninja has built.
"""
import glob
import os
import re
import subprocess
import sys

# A room, the files in it (the first line that fits counts), and the rooms that it may know.
ROOMS = '''
ground       src/(npy|ra_(slice[.]|clock|config|status|system|version|checksum|sum|whole|path|options|option_table|math|error|text|struct|tensor)).*
algorithm    src/ra_.*                  ground
gpu          (src/gpu/.*|kernels/(ra_)?model_.*)  ground algorithm kernels library plans mpi cuda model
kernels      kernels/.*                 ground algorithm
plans        src/library/(ring_attention[.]c|ra_choose.*)  ground algorithm library costs
library      src/library/.*             ground algorithm
mpi          src/mpi/.*                 ground algorithm library plans
costs        src/scale/r.*              ground algorithm library
cuda         src/cuda/.*                ground algorithm kernels library
model        src/model/.*               ground algorithm library plans mpi
stage        src/stage/.*               ground algorithm library mpi
planner      src/scale/.*               ground algorithm library costs mpi stage
transformer  src/transformer/.*         ground algorithm library mpi model stage
toys         src/toys/.*             ground algorithm kernels
programs     src/[01].*                 ground algorithm kernels library plans mpi costs cuda model gpu stage planner transformer
'''.strip().splitlines()
ROOMS = [(fields[0], re.compile(fields[1]), fields[2:]) for fields in map(str.split, ROOMS)]


def room(path):
    return next(name for name, files, _ in ROOMS if files.fullmatch(path))


def needs_by_include(sources):
    place = {os.path.basename(path): path for path in sources}
    for path in sources:
        with open(path) as file:
            for name in re.findall(r'^#include ["<](\w+\.h)[">]', file.read(), re.M):
                if name in place:
                    yield path, place[name], 'includes it'


def needs_by_call():
    defined, used, compiled = {}, [], set()
    for path in glob.glob('build/obj/*.o') + glob.glob('build/cuda/*.o'):
        if not os.path.exists(path + '.d'):
            continue
        with open(path + '.d') as file:
            source = file.read().replace('\\\n', ' ').split(':', 1)[1].split()[0]
        if not source.startswith(('src/', 'kernels/')) or not os.path.exists(source):
            continue
        compiled.add(room(source))
        said = subprocess.run(['nm', '-g', '-C', path], capture_output=True, text=True, check=True).stdout
        for kind, name in re.findall(r'^[0-9a-f ]* ([A-Za-z]) (\w+)', said, re.M):
            if kind == 'U':
                used.append((source, name))
            elif name != 'main':
                defined[name] = source
    return [(user, defined[name], 'names ' + name) for user, name in used if name in defined], compiled, defined


def circles(needs):
    """Groups of files each of which needs all others (Tarjan)."""
    graph, number, low, stack, found = {}, {}, {}, [], []
    for user, used, _ in needs:
        graph.setdefault(user, set()).add(used)

    def visit(node):
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in number:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == number[node]:
            at = stack.index(node)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return [group for group in found if len(group) > 1]


def complaints(needs):
    knows = {name: others for name, _, others in ROOMS}
    for user, used, why in sorted(needs):
        own, other = room(user), room(used)
        if own != other and other not in knows[own]:
            yield f'{user} ({own}) needs {used} ({other}): {why}'
    for group in circles(needs):
        yield 'a circle: ' + ' '.join(group)
        for user, used, why in sorted(needs):
            if user in group and used in group:
                yield f'    {user} needs {used}: {why}'


def chapter(path):
    """The chapter that a file is of, as its first comment or its room says; 0: common ground, which is no chapter's."""
    if room(path) in ('ground', 'stage'):
        return 0
    with open(path) as file:
        said = re.search(r'[Cc]hapters? (\d+)', file.read(2000).split('*/')[0])
    return int(said[1]) if said else {'transformer': 10, 'planner': 12}[room(path)]


def parts(defined):
    """Every program of a stage, with each file that it includes or links."""
    for program in sorted(glob.glob('src/[01]*_*.c')):
        stem = os.path.basename(program)[:-2]
        binary, depends = 'build/' + stem.replace('_', '-', 1), f'build/obj/{stem}.o.d'
        if not os.path.exists(binary) or not os.path.exists(depends):
            continue
        with open(depends) as file:
            for path in re.findall(r'\S+\.h\b', file.read()):
                for name in glob.glob('src/**/' + os.path.basename(path), recursive=True):
                    yield program, name, 'includes it'
        said = subprocess.run(['nm', '-g', '--defined-only', binary], capture_output=True, text=True, check=True).stdout
        for name in re.findall(r'^[0-9a-f]+ \w (\w+)$', said, re.M):
            if name in defined:
                yield program, defined[name], 'links ' + name


def too_early(used):
    with open('src/library/ring_attention.h') as file:
        in_header = set(re.findall(r'^#include "(\w+\.h)"', file.read(), re.M))
    for program, path, why in sorted(used):
        own, other = chapter(program), chapter(path)

        # From chapter 08 on the library is one thing, with the tile of 09 in it, the choice of a method of 12, and the
        # slices of 13 in its header; so is that for GPUs from chapter 11 on.
        seen = why.startswith('links') or os.path.basename(path) in in_header
        in_library = own >= 8 and seen and room(path) in ('algorithm', 'library', 'costs', 'plans')
        in_library |= own >= 11 and seen and room(path) in ('kernels', 'cuda')
        if other > own and not in_library:
            yield f'{program} is of chapter {own:02d}, but {why}: {path} is of chapter {other:02d}'


def main():
    sources = [path for pattern in ('src/*.[ch]', 'src/*/*.[ch]', 'kernels/*.c', 'kernels/*.cu', 'kernels/*.h')
               for path in glob.glob(pattern)]
    calls, compiled, defined = needs_by_call()
    used = set(parts(defined))
    needs = {need for need in [*needs_by_include(sources), *calls] if need[0] != need[1]}
    if sys.argv[1:] == ['--list']:
        for user, used, why in sorted(needs):
            print(f'{user} needs {used}: {why}')
    early = list(too_early(used))
    wrong = list(complaints(needs)) + early
    for line in wrong:
        print(line if line.startswith(' ') else 'FAILED ' + line)
    for name in sorted({room(path) for path in sources} - compiled):
        print(f'skipped calls of the room {name}: not compiled')

    # What must be seen: a call upward, a circle, and a module that comes too early.
    failed = sum(not line.startswith(' ') for line in wrong)
    for planted in (('src/ra_ring.c', 'src/library/ra_plan.c', 'a call upward'),
                    ('src/ra_span.c', 'src/ra_layout.c', 'a circle')):
        if len(list(complaints(needs | {planted}))) <= len(wrong) - len(early):
            print('FAILED not seen:', *planted)
            failed += 1
    for planted in (('src/04_causal.c', 'src/ra_layout.h', 'includes it'),
                    ('src/07_gqa.c', 'src/ra_vector.c', 'links ra_vector_find')):
        if len(list(too_early(used | {planted}))) <= len(early):
            print('FAILED not seen:', *planted)
            failed += 1
    passed = len({user for user, _, _ in needs}) + len({program for program, _, _ in used}) + 4
    print(passed - failed, 'passed,', failed, 'failed')
    return failed > 0


sys.exit(main())
