# settings.sh: writes what the environment, mpicc and nvcc say to files that compilers read as @FILE: build/flags (CPPFLAGS
# and CFLAGS), build/warnings (that warnings are errors), build/mpi-compile and build/mpi-link (what MPI adds; empty
# without an mpicc), build/cuda-include (of the toolkit, which is where nvcc is, or where NVIDIA's packages put it; its
# folder stands in build/cuda-toolkit). build/settings has all of this and the compiler's version: it changes only if one of
# these does, and then everything is compiled again.
#
# The MPI of this project is Open MPI: others are refused by name, rather than by errors of the compiler.
#
# Flags of fast mathematics are refused by name: with them the compiler takes it that no number is NaN or infinite, deletes
# the checks for those, and adds in another order.
set -e
for word in $CC $CPPFLAGS $CFLAGS $LDFLAGS; do
    case $word in
    -Ofast | -ffast-math | -funsafe-math-optimizations | -ffinite-math-only | -fassociative-math | -ffp-model=[fa]*)
        echo "$word is in CC, CPPFLAGS, CFLAGS or LDFLAGS: fast mathematics deletes the checks for NaN and changes" \
            "the results; leave it out, -O3 is set already" >&2
        exit 1
        ;;
    esac
done
mkdir -p build
# refuse TOOL NAME
refuse() {
    echo "$1 ($(command -v "$1")) belongs to $2; this project needs Open MPI. On Debian and Ubuntu install" \
        "libopenmpi-dev and openmpi-bin, then choose them with: update-alternatives --config mpi; update-alternatives" \
        "--config mpirun. Without any mpicc on PATH, ninja lib builds libringattn alone." >&2
    exit 1
}
for tool in mpicc mpirun; do
    command -v $tool >/dev/null || continue
    case $tool in mpicc) said=$(mpicc --showme:version 2>&1) || : ;; *) said=$(mpirun --version 2>&1) || : ;; esac
    case $said in
    *'Open MPI'*) continue ;;
    esac
    [ $tool = mpirun ] || said="$said $(mpicc -show 2>&1)" || :
    case $said in
    *[Mm][Pp][Ii][Cc][Hh]* | *HYDRA*) refuse $tool MPICH ;;
    *) refuse $tool 'another MPI' ;;
    esac
done

# keep FILE: what stands on stdin, unless it stands there already.
keep() {
    cat >"$1.$$"
    cmp -s "$1.$$" "$1" && rm "$1.$$" || mv "$1.$$" "$1"
}
mpi() {
    ! command -v mpicc >/dev/null || mpicc "$1"
}
echo "$CPPFLAGS $CFLAGS" | keep build/flags
if [ "$CC$CPPFLAGS$CFLAGS$LDFLAGS" ]; then echo; else echo -Werror; fi | keep build/warnings
mpi --showme:compile | keep build/mpi-compile
mpi --showme:link | keep build/mpi-link
nvcc=$(readlink -m "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")
cuda=${nvcc%/bin/nvcc}
echo "$cuda" | keep build/cuda-toolkit
echo "-isystem $cuda/include" | keep build/cuda-include
{
    printf '%s\n' "CC=$CC" "LDFLAGS=$LDFLAGS"
    ${CC:-gcc} --version | head -n 1
    cat build/flags build/warnings build/mpi-compile build/mpi-link build/cuda-include
} | keep build/settings
