# Prints an archive of a folder or file, or the rest of a large file.
#
#   what    some: the names on standard input, ended by NUL; all: everything; one: the file $leaf; rest: of $leaf
#   folder  where to look, absolute or relative to the home directory
#   offset tail size   for the rest: where the client's copy ends, the hash of its last MiB, and the whole size
cd || exit 1
cd "$folder" || exit 1
LC_ALL=C
export LC_ALL
case $what in
some) exec tar -c --null --no-recursion --hard-dereference -T - -f - ;;
all) exec tar -c -f - . ;;
one) exec tar -c -h -f - -- "./$leaf" ;;
rest)
    if [ "$(stat -L -c %s "./$leaf")" != "$size" ]; then
        echo stale >&2
        exit 3
    fi
    if [ "$offset" -gt 0 ]; then
        start=$((offset > 1048576 ? offset - 1048576 : 0))
        set -- $(tail -c "+$((start + 1))" "./$leaf" | head -c "$((offset - start))" | sha256sum)
        if [ "$1" != "$tail" ]; then
            echo stale >&2
            exit 3
        fi
    fi
    tail -c "+$((offset + 1))" "./$leaf" | head -c "$((size - offset))"
    ;;
esac
