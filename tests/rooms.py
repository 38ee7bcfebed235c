"""rooms: who may know whom. No file includes a header of a room above its own or calls a function there, and neither
calls nor includes go round in a circle: each file can be read after those that it needs.

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
ground       src/(npy|ra_(clock|config|status|system|version|checksum|sum|whole|options|option_table|math|error|tensor)).*
algorithm    src/ra_.*                  ground
kernels      kernels/.*                 ground algorithm
library      src/library/.*             ground algorithm
mpi          src/mpi/.*                 ground algorithm library
costs        src/scale/r.*              ground algorithm library
cuda         src/cuda/.*                ground algorithm kernels library
model        src/model/.*               ground algorithm library mpi
stage        src/stage/.*               ground algorithm library mpi
planner      src/scale/.*               ground algorithm library costs stage
transformer  src/transformer/.*         ground algorithm library mpi model stage
programs     src/[01].*                 ground algorithm kernels library mpi costs cuda model stage planner transformer
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
    return [(user, defined[name], 'names ' + name) for user, name in used if name in defined], compiled


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


def main():
    sources = [path for pattern in ('src/*.[ch]', 'src/*/*.[ch]', 'kernels/*.c', 'kernels/*.cu', 'kernels/*.h')
               for path in glob.glob(pattern)]
    calls, compiled = needs_by_call()
    needs = {need for need in [*needs_by_include(sources), *calls] if need[0] != need[1]}
    if sys.argv[1:] == ['--list']:
        for user, used, why in sorted(needs):
            print(f'{user} needs {used}: {why}')
    wrong = list(complaints(needs))
    for line in wrong:
        print(line if line.startswith(' ') else 'FAILED ' + line)
    for name in sorted({room(path) for path in sources} - compiled):
        print(f'skipped calls of the room {name}: not compiled')

    # What must be seen: a call upward, and a circle.
    failed = sum(not line.startswith(' ') for line in wrong)
    for planted in (('src/ra_ring.c', 'src/library/ra_plan.c', 'a call upward'),
                    ('src/ra_span.c', 'src/ra_layout.c', 'a circle')):
        if len(list(complaints(needs | {planted}))) <= len(wrong):
            print('FAILED not seen:', *planted)
            failed += 1
    print(len({user for user, _, _ in needs}) + 2 - failed, 'passed,', failed, 'failed')
    return failed > 0


sys.exit(main())
