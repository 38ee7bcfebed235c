"""folders: where the tests that are written in Python leave their files.
"""
import fcntl
import os
import shutil
import sys

_locks = []  # for as long as the program runs


def begin(folder):
    """Makes the folder anew. Two runs at once would delete each other's files, so the second waits until the first has
    ended."""
    folder = os.fspath(folder)
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    _locks.append(open(folder + ".lock", "w", encoding="utf-8"))
    try:
        fcntl.flock(_locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"{sys.argv[0]}: waits for another run, which works in {folder}", file=sys.stderr, flush=True)
        fcntl.flock(_locks[-1], fcntl.LOCK_EX)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
