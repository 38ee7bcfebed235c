"""every_call: each system call of a run that concerns its files fails once, and ends the run once.

    python3 tests/every_call.py BUILD [EVERY [SEED]]

02-flash, and each rank of 03-ring on two ranks, run where results of another run lie, or none. One
call of one process fails, with each of three errors, or kills it, or in a ring stops it
(tests/rig/inject.c); in a ring also calls that concern MPI's own files, as it begins and ends. Then the folder must hold all results of the one run or all of the other; the
exit code may be 0 only if they are the new ones; and the next run must leave nothing but its own.
With EVERY only each so many-th call is tried, in a ring each of 7 times so many; SEED says which.
Where a rank dies in MPI_Init, mpirun may wait for ever when all ranks are gone: that is counted apart,
as nothing that a rank could mend. Ends with "N passed, N failed".
"""
import os
import pathlib
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True  # nothing that is built lies outside BUILD
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "rig"))
import folders

BUILD = pathlib.Path(sys.argv[1]).resolve()
EVERY = int(sys.argv[2]) if len(sys.argv) > 2 else 1
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
ERRORS = ["EIO", "ENOSPC", "EINTR"]
ARRAYS = ["o", "lse", "dq", "dk", "dv"]
OTHER = ["--scale", "0.3"]  # the flags of the other run
CANNOT = 98
SECONDS = 120  # for one run
HANGS, MPIRUN_HANGS = "hangs", "mpirun hangs"  # instead of an exit code: with ranks left, or none

# The name of this folder is in the path of each file that counts, and of no other.
WORK = BUILD / "every-call"
PROBLEM, FOLDER = WORK / "problem", WORK / "results"
RESULT = FOLDER / "result"
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_pml="ob1")

passed = failed = abandoned = 0


def verdict(name, wrong):
    """Counts a test, which has passed if nothing is wrong."""
    global passed, failed
    passed += not wrong
    failed += bool(wrong)
    if wrong:
        print(f"FAILED {name}: {'; '.join(wrong)}", flush=True)


def is_left(program):
    """Does a process run this program on our problem? Other tests may run it, too."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if words[0] == bytes(program) and bytes(PROBLEM) in words:
                return True
        except OSError:
            pass
    return False


def run(ranks, flags, victim=None, inject=()):
    """Runs a stage, one rank behind these words of inject.c. Returns its exit code and stderr."""
    program = BUILD / ("03-ring" if ranks > 1 else "02-flash")
    command = [*inject, program, *flags, PROBLEM, RESULT]
    if ranks > 1:
        choose = f'[ "$OMPI_COMM_WORLD_RANK" = "{victim}" ] || shift {len(inject)}; exec "$@"'
        command = ["mpirun", "--oversubscribe", "-n", str(ranks), "sh", "-c", choose, "sh", *command]
    said = WORK / "stderr"
    with open(WORK / "stdout", "w") as out, open(said, "w") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                                   env=ENVIRONMENT)
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            code = HANGS if is_left(program) else MPIRUN_HANGS
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return code, said.read_text(errors="replace")


def arrays():
    """What a reader finds: the bytes of each array."""
    files = {name: RESULT / f"{name}.npy" for name in ARRAYS}
    return {name: path.read_bytes() for name, path in files.items() if path.exists()}


def fresh_folder():
    """An empty place for results."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()


def try_call(ranks, rank, fault, word, number, before, old, new):
    """One fault, where the results `before` lie. False if the rank makes fewer calls."""
    if arrays() != before:
        fresh_folder()
        if before:
            run(ranks, OTHER)
    flags = ["--timeout", "1"] if fault == "STOP" else []
    code, said = run(ranks, flags, rank, [BUILD / "inject", str(number), fault, word])
    calls = [line.split()[-1] for line in said.splitlines() if line.startswith("inject: ")]
    if not calls:
        return False
    found, wrong = arrays(), []
    if found not in (before, new):
        whose = {name: "old" if data == old[name] else "new" if data == new[name] else "torn"
                 for name, data in found.items()}
        wrong.append(f"neither run's results: {whose}")
    if code == 0 and found != new:
        wrong.append("exit code 0")
    if code == MPIRUN_HANGS and word == "ompi.":
        global abandoned
        abandoned += 1
    elif code in (HANGS, MPIRUN_HANGS):
        wrong.append(code)

    # What could not get its name is kept under another, which the error says.
    for kept in FOLDER.glob(RESULT.name + ".*"):
        if code == 0 or kept.name not in said:
            wrong.append(f"left {kept.name}, and said {said[-300:]}")
        shutil.rmtree(kept)

    # The next run is a good one, and sweeps.
    code, said = run(ranks, OTHER)
    if code != 0 or arrays() != old:
        wrong.append(f"the next run: exit code {code}, {said[-300:]}")
    left = [*FOLDER.iterdir(), *RESULT.glob("*")]
    if len(left) != 1 + len(ARRAYS):
        wrong.append(f"the next run leaves {[path.name for path in left]}")
        fresh_folder()
        run(ranks, OTHER)
    verdict(f"rank {rank} of {ranks}: {fault} at call {number} for {word}, {calls[0]}", wrong)
    return True


def try_all(ranks, every):
    """All calls of all ranks, or a sample of them, by turns with earlier results and without."""
    fresh_folder()
    outcomes = []
    for flags in [], OTHER:
        code, said = run(ranks, flags)
        outcomes.append(arrays())
        verdict(f"{ranks} ranks in peace", [] if code == 0 else [f"exit code {code}: {said}"])
    new, old = outcomes

    # MPI opens and removes files of its own in MPI_Init and MPI_Finalize.
    faults = [(fault, WORK.name) for fault in [*ERRORS, "KILL"]]
    if ranks > 1:
        faults += [("STOP", WORK.name), ("KILL", "ompi.")]
    if ranks > 1 and every == 1:
        faults += [("STOP", "ompi.")]
    for rank in range(ranks):
        for f, (fault, word) in enumerate(faults):
            number = 1 + (SEED + (f + rank * len(faults)) * every // 5) % every
            turn = f
            while try_call(ranks, rank, fault, word, number, {} if turn % 2 else old, old, new):
                number += every
                turn += 1


folders.begin(WORK)
subprocess.run([BUILD / "problem", "--queries", "20", "--heads", "2", "--dim-head", "4", PROBLEM],
               check=True, stdout=subprocess.DEVNULL)
if subprocess.run([BUILD / "inject", "1", "EIO", WORK.name, "true"]).returncode == CANNOT:
    print("skipped system calls that fail: no process can be traced here")
else:
    try_all(1, EVERY)
    try_all(2, 7 * EVERY if EVERY > 1 else 1)
if abandoned:
    print(f"mpirun went on waiting when all ranks were gone: {abandoned} times")
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
