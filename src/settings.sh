# settings.sh: writes build/settings, which has what the environment says of compiler and flags, the compiler's version,
# and what mpicc says. The file changes only if one of these does, and then everything is compiled again.
#
# build/mpi-flags has the two lines of mpicc, what MPI adds when compiling and when linking, as long as there is an mpicc.
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
part=build/settings.$$ flags=build/mpi-flags.$$

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

if command -v mpicc >/dev/null; then
    { mpicc --showme:compile && mpicc --showme:link; } >"$flags"
    cmp -s "$flags" build/mpi-flags && rm "$flags" || mv "$flags" build/mpi-flags
else
    rm -f build/mpi-flags
fi
{
    printf '%s\n' "CC=$CC" "CPPFLAGS=$CPPFLAGS" "CFLAGS=$CFLAGS" "LDFLAGS=$LDFLAGS"
    ${CC:-gcc} --version | head -n 1
    [ ! -e build/mpi-flags ] || cat build/mpi-flags
} >"$part"
cmp -s "$part" build/settings && rm "$part" || mv "$part" build/settings
