# objects.sh: how each rule of build.ninja begins that makes $out of sources, objects and archives, which
# are the arguments. $compile compiles one source; $objects and $archives are then what to link.
#
# A source is compiled if it, a header of it or a rule has changed since: one changed source is no
# reason to compile all others of its archive. $out.dep lists sources and headers for ninja.
#
# Suites are compiled quickly, not to be quick: -O3 takes longer than they do. The definition that judges them
# has no threads, and ThreadSanitizer in it would take most of the time of the suites that look for races. To check
# that no pointer of the vector tile overflows takes clang more than half of the time for libFuzzer's variant; gcc's
# sanitizers look for that, too.
#
# If the environment names a compiler or flags, warnings of its compiler are no errors.
set -e
[ -e build/settings ] || sh src/settings.sh
[ -z "$CC$CPPFLAGS$CFLAGS$LDFLAGS" ] || compile="$compile -Wno-error"
mkdir -p "$out.d"
objects='' archives='' dependencies=/dev/null
for file; do
    case $file in
    *.a) archives="$archives $file" && continue ;;
    *.c)
        object=${file##*/} stale=''
        object=$out.d/${object%.c}.o

        # The compiler's list is one line "target: source header...", broken by backslashes.
        [ -e "$object" ] && read target parts <"$object.d" || stale=yes
        for part in $parts build/settings *.ninja */*.ninja; do
            [ -e "$part" ] && ! [ "$part" -nt "$object" ] || stale=yes
        done
        if [ "$stale" ]; then
            case $out/$file in
            */tests/check_*) for_this=-O1 ;;
            */tests/rig/definition.c) for_this=-fno-sanitize=all ;;
            build/fuzz/*/src/ra_vector_*) for_this=-fno-sanitize=pointer-overflow ;;
            *) for_this='' ;;
            esac
            $compile $for_this -MMD -MT "$out" -MF "$object.d" -c "$file" -o "$object.part"
            mv "$object.part" "$object"
        fi
        dependencies="$dependencies $object.d"
        file=$object
        ;;
    esac
    objects="$objects $file"
done
{ cat $dependencies; echo "$out: build/settings"; } >"$out.dep"
