# Says what of an upload is on this machine already. Lines of ours begin with $mark, since a login may print things.
#
#   kind     tree: $target becomes the copy; into: the files go inside it; file: $target is the file's new name
#   target   a path, absolute or relative to the home directory
#   key      names the stamp that the last upload of this tree has left here
#   folders  how many lines of standard input name folders that must exist; a gzipped list of names follows them
#   want     differences, or the hashes of the contents, in the order of the names
#   expected_gnu expected_lines   the hash of what is listed, by the kind of `stat`, where nothing differs
cd || exit 1
LC_ALL=C
export LC_ALL

say() { printf '%s %s\n' "$mark" "$*"; }

base=$target
if [ "$kind" = file ]; then
    if [ -d "$target" ]; then
        say inside
        exit 0
    fi
    base=${target%/*}
    base=${base:-/}
fi
if [ ! -d "$base" ]; then
    if [ -e "$base" ] || [ -h "$base" ]; then say obstacle; else say absent; fi
    exit 0
fi
state=$HOME/.trainyard/uploads
cd "$base" || exit 1
if [ -e "$state/$key.bad" ]; then say bad; fi
if read -r stamp 2>/dev/null <"$state/$key"; then say "stamp $stamp"; fi
while [ "$folders" -gt 0 ]; do
    IFS= read -r folder
    if [ ! -d "./$folder" ]; then say incomplete; fi
    folders=$((folders - 1))
done

# The sums of large files as the last upload left them; see `receive_tar`.
print_blocks() {
    if [ -s "$state/$key.blocks" ]; then cat "$state/$key.blocks"; fi
}

if [ "$want" = hashes ]; then
    say listing hashes
    gzip -dc | xargs -0 sha256sum -- 2>/dev/null | gzip -1
    print_blocks
    exit 0
fi

# The listing is kept until it is known whether the client wants it. Its folder may be anybody's: never overwrite.
if [ -d "$state" ]; then found=$state/$mark; else found=${TMPDIR:-/tmp}/$mark; fi
umask 077
set -C
trap 'rm -f "$found" "$found.names"' EXIT
trap 'exit 1' HUP INT TERM
gzip -dc >"$found.names"

# NB: names may hold newlines, which only GNU's stat can tell from the end of a line.
flavour=gnu
expected=$expected_gnu
xargs -0 stat --printf='%f %s %Y %n\0' -- <"$found.names" >"$found" 2>/dev/null
if [ ! -s "$found" ] && ! stat --printf= . 2>/dev/null; then
    set +C
    if stat -c %f . >/dev/null 2>&1; then
        flavour=lines
        expected=$expected_lines
        xargs -0 stat -c '%f %s %Y %n' -- <"$found.names" >"$found" 2>/dev/null
    else
        # Existence is all that can be told; the zeros equal no file, so all is sent.
        flavour=names
        xargs -0 sh -c 'for n do if [ -e "$n" ] || [ -h "$n" ]; then printf "0 0 0 %s\0" "$n"; fi; done' sh \
            <"$found.names" >"$found"
    fi
fi
set -- $(sha256sum <"$found")
if [ "$1" = "$expected" ]; then
    say same
else
    say "listing $flavour"
    gzip -1 <"$found"
    print_blocks
fi
