"""leak: finds out whether a causal program sees the future, without a judge.

    python3 tests/rig/leak.py PROGRAM PROBLEM TOKEN FOLDER

Runs the program on four ranks twice, the second time with this token and all later ones changed, and
says from which token on the results differ. o, lse and dq before it must keep their bits. Everything
is left in FOLDER.
"""
import os
import subprocess
import sys

import numpy

program, problem, first, folder = sys.argv[1:]
later, results = f'{folder}/later', (f'{folder}/result', f'{folder}/later-result')
os.makedirs(later, exist_ok=True)
for name in ('q', 'k', 'v', 'do'):
    rows = numpy.load(f'{problem}/{name}.npy')
    rows[:, int(first):] += 1
    numpy.save(f'{later}/{name}.npy', rows)
for inputs, result in zip((problem, later), results):
    subprocess.run(['mpirun', '--oversubscribe', '-n', '4', program, '--causal', inputs, result],
                   stdout=subprocess.DEVNULL, check=True)
for name in ('o', 'lse', 'dq', 'dk', 'dv'):
    differs = numpy.not_equal(*(numpy.load(f'{result}/{name}.npy') for result in results))
    tokens = differs.any(axis=(0, 1) if name == 'lse' else (0, 2, 3))
    print(name, 'changed from token', numpy.flatnonzero(tokens)[0], 'on')
