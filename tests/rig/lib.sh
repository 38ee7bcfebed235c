# lib.sh: what the scripts of tests/ share. They begin with `. "$(dirname "$0")/rig/lib.sh"`.

# Paths are from the root of the repository.
[ -f build.ninja ] || { echo "run this from the root of the repository" >&2; exit 2; }

# The python that has NumPy. Open MPI asks root to insist twice.
python=/usr/bin/python3
$python -c 'import numpy' 2>/dev/null || python=python3
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Ranks of one machine need no network: a job that does not look for one starts in half the time.
export OMPI_MCA_pml=ob1
# Open MPI 5 looks for one all the same, and complains of what it finds.
case $(mpirun --version 2>/dev/null) in *'(Open MPI) 5.'*) export OMPI_MCA_btl=^tcp ;; esac
# Threads that wait for each other sleep: while they spin, other tests lack the processor.
export OMP_WAIT_POLICY=passive
# So that ranks, too, leave it to others, even in a job that has no more of them than there are
# processors.
export OMPI_MCA_mpi_yield_when_idle=1
# On a busy machine a case of a suite may take four times as long until it counts as hanging.
export CK_TIMEOUT_MULTIPLIER=4
# Where ranks end badly, mpirun itself must not: one of our own starts that of the machine.
case $PATH in */tests/rig/bin:*) ;; *) export PATH="$PWD/tests/rig/bin:$PATH" ;; esac
mpirun='mpirun --oversubscribe --bind-to none'

# make_anew FOLDER: an empty folder. Where tests/all has found room in memory, it is there.
make_anew() {
    place=${in_memory:+$in_memory$PWD/}$1
    rm -rf "$1" "$place"
    mkdir -p "$place"
    [ -z "$in_memory" ] || ln -s "$place" "$1"
}

# begin FOLDER: makes it anew, as $work, for all that a script leaves and for its numbers. Two runs at once would delete
# each other's files, so the second waits until the first has ended, and all that it has started.
begin() {
    work=$1
    mkdir -p "$(dirname "$work")"
    exec 9>"$work.lock"
    flock -n 9 || { echo "$0: waits for another run, which works in $work" >&2 && flock 9; }
    make_anew "$work"
    : >"$work/sums"
}

# count PASSED FAILED: notes numbers of tests. Tests may run at the same time: a line this short is
# written in one piece.
count() {
    echo "$1 $2" >>"$work/sums"
}

# verdict NAME PROBLEM: notes that a test has passed (no PROBLEM) or failed.
verdict() {
    if [ -z "$2" ]; then
        count 1 0
    else
        count 0 1
        echo "FAILED $1: $2"
    fi
}

# judge STATUS NAME [LOG]: notes a test by its exit status. Of one that failed shows the end of LOG.
judge() {
    if [ "$1" -eq 0 ]; then
        verdict "$2" ''
    else
        verdict "$2" "exit status $1"
        [ -z "$3" ] || tail -n 20 "$3"
    fi
}

# numbers STATUS LOG: sets p and f to what a suite says with its line "N passed, N failed". One that
# fails without such a line, or crashes after it, has failed once.
numbers() {
    p=$(sed -n 's/^\([0-9]*\) passed, [0-9]* failed$/\1/p' "$2" | tail -n 1)
    f=$(sed -n 's/^[0-9]* passed, \([0-9]*\) failed$/\1/p' "$2" | tail -n 1)
    p=${p:-0} f=${f:-0}
    [ "$1" -eq 0 ] || [ "$f" -gt 0 ] || f=1
}

# judge_suite STATUS NAME LOG: notes a whole suite as one test.
judge_suite() {
    numbers "$1" "$3"
    if [ "$p" -gt 0 ] && [ "$f" -eq 0 ]; then
        verdict "$2" ''
    else
        verdict "$2" "$p passed, $f failed, exit status $1: $(grep -m 8 FAILED "$3" || echo "nothing said")"
    fi
}

# finish [REASON]: ends a script with the sum of its numbers. It has succeeded if none failed, and
# some passed; if there was a REASON to skip them, none need have.
finish() {
    awk -v reason="$1" '{ passed += $1; failed += $2 } END {
        print passed + 0 " passed, " failed + 0 " failed"
        exit failed > 0 || passed == 0 && reason == "" }' "$work/sums"
    exit
}

# median COLUMN FILE: of the numbers in a column.
median() {
    awk -v c="$1" '{ print $c }' "$2" | sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'
}

# For awk, in a line of a trace: value("ts") is what stands there.
trace_value='function value(key) {
    match($0, "\"" key "\":[^,}]*")
    return substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
}'

# runs PID: whether this process runs. One that has ended and that nobody has asked about does not.
runs() {
    case $(ps -o stat= -p "$1") in '' | Z*) return 1 ;; esac
}

# copy_tree FOLDER [FROM]: the tree as it is, or that in FROM, with the objects and ninja's log of
# its build, so that only what changes is compiled again; but without the large programs for GPUs.
copy_tree() {
    from=${2:-.}
    rm -rf "$1"
    mkdir -p "$1/build"
    for part in LICENSE README.md build.ninja src kernels tests chapters notebooks; do
        cp -R -p "$from/$part" "$1"
    done
    find "$from/build" -maxdepth 1 \( -type f -size -8M -o -name obj \) \
        -exec cp -R -p -t "$1/build" {} +
    [ ! -d "$from/build/cuda" ] || cp -R -p "$from/build/cuda" "$1/build"
}

# plant FOLDER FILE FUNCTION TEXT INSTEAD, or plant FOLDER SCRIPT NAME: changes the copy in FOLDER,
# see plant.py.
plant() {
    $python tests/rig/plant.py "$@"
}

# at_a_time NUMBER COMMAND: calls it with each line of stdin. So many workers, each with its number
# as $worker, take the next line that no other has taken. The command leaves $list, $number and $worker as they are.
at_a_time() {
    list=$work/$2.list
    cat >"$list"
    for worker in $(seq "$1"); do
        number=0
        while read -r line; do
            number=$((number + 1))
            mkdir "$list-$number" 2>/dev/null || continue
            "$2" "$line" </dev/null
        done <"$list" &
    done
    wait
}
