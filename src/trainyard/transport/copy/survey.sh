# Says what of an upload is on this machine already. Lines of ours begin with $mark, since a login may print things.
#
#   kind     tree: $target becomes the copy; into: the files go inside it; file: $target is the file's new name
#   target   a path, absolute or relative to the home directory
#   key      names the stamp that the last upload of this tree has left here
#   folders  how many lines of standard input name folders that must exist; a gzipped list of names follows them
#   want     digest, listing, or hashes of the contents, in the order of the names
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

# NB: names may hold newlines, which only GNU's stat can tell from the end of a line. BusyBox's is told no such name.
if stat --printf= . 2>/dev/null; then
    flavour=gnu
    list() { xargs -0 stat --printf='%f %s %Y %n\0' -- 2>/dev/null; }
elif stat -c %f . >/dev/null 2>&1; then
    flavour=lines
    list() { xargs -0 stat -c '%f %s %Y %n' -- 2>/dev/null; }
else
    flavour=names # existence is all that can be told; the zeros equal no file, so all is sent
    list() { xargs -0 sh -c 'for n do if [ -e "$n" ] || [ -h "$n" ]; then printf "0 0 0 %s\0" "$n"; fi; done' sh; }
fi

case $want in
digest)
    set -- $(gzip -dc | list | sha256sum)
    say "digest $flavour $1"
    ;;
hashes)
    say "listing $flavour"
    gzip -dc | xargs -0 sh -c 'for n do sha256sum <"$n"; done' sh | gzip -1
    ;;
*)
    say "listing $flavour"
    gzip -dc | list | gzip -1
    ;;
esac
