"""jobs: MPI jobs of the tests that are written in Python: one command, or many lines of a batch program.
"""
import os
import signal
import subprocess
import tempfile

LOST_LAUNCHES = 10  # that many may end at a line that fails; what is left then is not run
NOT_RUN = f"not run: {LOST_LAUNCHES} launches have failed already"
LINE_SECONDS = 300  # until a line counts as hanging
MEAN_SECONDS = 20  # the same for a launch, for each of its lines


def mpirun(ranks, *command):
    """The command on so many ranks. Open MPI wants to hear twice that root may run it; ranks of one machine
    need no network. On a busy machine threads and ranks that spin while they wait take the processors from
    those that they wait for: passive threads, and ranks that yield, do not."""
    return ["env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
            "OMPI_MCA_pml=ob1", "OMPI_MCA_mpi_yield_when_idle=1", "OMP_WAIT_POLICY=passive",
            "mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *command]


def alone(folder, *command):
    """The command without mpirun, whose end takes seconds, and without the daemon that Open MPI would start for it,
    whose start takes as long, and at whose end one process in hundreds has crashed. Those that run at the same time
    must not share Open MPI's folder: it is made in `folder`. One rank has no memory in common with others, for which
    Open MPI 5 would make a file of 16 MB."""
    return ["env", "OMPI_MCA_ess_singleton_isolated=1", "OMPI_MCA_btl=self", "OMP_WAIT_POLICY=passive",
            f"OMPI_MCA_orte_tmpdir_base={tempfile.mkdtemp(dir=os.path.abspath(folder))}", *map(str, command)]


def run_lines(program, ranks, lines, path, most=LOST_LAUNCHES):
    """Runs all lines, which it writes to `path`, by a batch program on this number of ranks; stops when
    `most` launches have failed. Returns {index of a line: what failed}."""
    with open(path, "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in lines))

    # A line that fails ends the launch; the lines after it get another one.
    failures = {}
    first = 0
    while first < len(lines) and len(failures) < most:
        failure = run(mpirun(ranks, program, path, str(first), str(LINE_SECONDS)),
                      LINE_SECONDS + MEAN_SECONDS * (len(lines) - first))
        at = last_line(path + ".at")
        # After the last line only MPI_Finalize is left, in which a rank has crashed once in thousands of jobs.
        if at == len(lines) and (failure is None or failure.startswith("exit status 139:")):
            return failures
        if failure is None or not first <= at < len(lines):
            failure = f"batch stopped at line {at} of {path}: {failure or 'exit status 0'}"
            at = first
        failures[at] = failure
        first = at + 1
    failures.update(dict.fromkeys(range(first, len(lines)), NOT_RUN))
    return failures


def last_line(path):
    """The number of the line at which batch is or was; -1 if it has not come to any."""
    try:
        with open(path, encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        return -1


def run(command, seconds):
    """Runs a command. Returns None, or what failed."""
    try:
        job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)
    except OSError as error:
        return str(error)
    try:
        _, errors = job.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        stop(job)
        return f"no end after {seconds} s"
    except BaseException:
        stop(job)  # an interrupt must not leave ranks behind
        raise
    if job.returncode == 0:
        return None
    said = [line for line in errors.splitlines() if line and not line.startswith("---")]
    return f"exit status {job.returncode}: " + " / ".join(said[:20])


def stop(job):
    """Ends a job and all that it started. mpirun first gets the chance to end its ranks itself."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(job.pid, number)
        except ProcessLookupError:
            return
        try:
            job.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            continue
