# Where a stream ends on this machine: an archive is unpacked, a part of a large file is appended. Each function reads
# standard input and returns 0 when all of it has arrived. Reasons of failure go to standard error.

state=$HOME/.trainyard/uploads

# A stamp is replaced whole, because machines may share a home. Where the home cannot be written, there is none.
write_stamp() {
    if ! [ -d "$state" ]; then return 0; fi
    printf '%s\n' "$1" >"$state/$key.$mark.$$" && mv -f "$state/$key.$mark.$$" "$state/$key"
}

#   base   the folder to unpack in; made where missing
#   end    the name of the archive's last member: a stream that was cut between two members lacks it
#          what is in it are sums of large files, kept for the next upload
#   begun  the time of the client's scan; kept as the stamp until an upload completes
receive_tar() {
    if ! [ -d "$state" ]; then mkdir -p "$state" 2>/dev/null; fi
    if ! [ -d "$base" ]; then mkdir -p "$base" || return 1; fi
    if [ ! -e "$state/$key" ]; then write_stamp "$begun"; fi
    # Large records: a sixth less work for both sides of the pipe than tar's 10 KiB.
    case $(tar --version 2>/dev/null) in
    *GNU*) gnu='--keep-directory-symlink --warning=no-timestamp -b 2048' ;;
    *) gnu= ;;
    esac
    seen=$({
        # $gnu is a list of words.
        cd "$base" && LC_ALL=C tar -x -p -o -v $gnu -f -
        echo "status $?"
    } | tail -n 2)
    status=${seen##*status }
    last=${seen%status *}
    last=${last%?}
    if [ "$last" = "$end" ]; then
        if [ -s "$base/$end" ] && [ -d "$state" ] && mv -f "$base/$end" "$state/$key.blocks"; then
            return "$status"
        fi
        rm -f "$base/$end"
        return "$status"
    fi
    # The last member may be half a file. GNU tar escapes odd names with backslashes; those are left alone, as is
    # everything where names are printed raw. The next upload sees its size and time and sends it again.
    case $gnu:$last in
    : | :* | *: | *\\*) ;;
    *) if [ -f "$base/$last" ]; then rm -f "$base/$last"; fi ;;
    esac
    # Where tar failed, it has said why.
    if [ "$status" = 0 ]; then echo "the stream ended early" >&2; fi
    return 1
}

#   folder leaf      where the file goes
#   stem signature   the part's name; the signature stands for the local file's content, so another content has another
#   offset tail      what the part must hold already, and the hash of its last MiB
#   upto             the part's size when this stream has been appended
#   complete         1: the file is complete then, with `mode` and `when` (UTC)
#   relayed          1: the caller finishes the file, once the stream has proved right
#   alone            1: write a part of our own; nobody else's is continued
receive_part() {
    final=$folder/$leaf
    part=$folder/$stem$signature
    mkdir -p "$state" 2>/dev/null
    mkdir -p "$folder" || return 1
    umask 077 # the file's own mode comes when it is complete
    if [ -d "$final" ] && [ ! -h "$final" ]; then
        echo "$final is a folder" >&2
        return 1
    fi
    if [ "$alone" = 1 ]; then
        part=$part.$mark
    else
        command -v flock >/dev/null || return 4
    fi
    # The part is made new, or continued as what an upload left. What others have put there, a link above all, goes.
    if [ -h "$part" ] || { [ -e "$part" ] && ! is_plain "$part"; }; then rm -rf "$part"; fi
    (set -C && true >"$part") 2>/dev/null || [ "$alone" != 1 ] || return 1
    true >>"$part" || return 1
    exec 9>>"$part"
    # Two uploads of one file must not append to one part. The lock goes with its holder. The path is compared again,
    # since the last holder may have renamed the part while we waited to open it. From here on only the open file counts.
    if [ "$alone" != 1 ] && ! flock -n 9 2>/dev/null || [ -h "$part" ] || ! [ "/dev/fd/9" -ef "$part" ] ||
        ! is_plain /dev/fd/9; then
        echo "busy" >&2
        return 4
    fi
    size=$(stat -L -c %s /dev/fd/9)
    if [ "$size" != "$offset" ] || ! holds_tail; then
        if [ "$offset" = 0 ] && [ "$alone" != 1 ]; then
            true >/dev/fd/9
        else
            echo "stale" >&2
            return 3
        fi
    fi
    # Not cat: a file that grows while it is sent is cut at the size it had.
    head -c "$((upto - offset))" >&9 || return 1
    if [ "$(stat -L -c %s /dev/fd/9)" != "$upto" ]; then
        if [ "$alone" = 1 ]; then rm -f "$part"; fi
        echo "the stream ended early" >&2
        return 1
    fi
    if [ "$complete" = 1 ] && [ "$relayed" != 1 ]; then finish_part; fi
}

# A file with one name: not the second name of somebody else's.
is_plain() { [ -f "$1" ] && [ "$(stat -L -c %h "$1")" = 1 ]; }

holds_tail() {
    if [ "$offset" = 0 ]; then return 0; fi
    set -- $(tail -c 1048576 "$part" | sha256sum)
    [ "$1" = "$tail" ]
}

finish_part() {
    chmod "$mode" /dev/fd/9 && TZ=UTC0 touch -t "$when" /dev/fd/9 || return 1
    if [ -d "$final" ]; then rm -f "$final"; fi # a link to a folder; mv would go inside
    mv -f "$part" "$final" || return 1
    drop_old "$folder/$stem"
}

# Parts of older contents, left by uploads that were given up.
drop_old() {
    for old in "$1"*; do
        if [ -f "$old" ] && [ -n "$(find "$old" -prune -mtime +1 2>/dev/null)" ]; then rm -f "$old"; fi
    done
}

# New blocks for files that are here in an older form. Nothing gets its name before all of it is proved.
#
#   base    a folder for what has come
#   patch   defines seal, a key, and copy_all, patch_all, settle_all, place_all and with_all, which know the files; parts
#           end in $own
#   upto    bytes of blocks
#   proofs  bytes of proofs that follow them, one line a file
#   kept    bytes of sums for the next upload that follow those
receive_delta() (
    umask 077
    set -C # every file of ours is new
    own=$mark.$$
    data=$base/.trainyard-part-$own
    eval "$patch"
    trap 'with_all rm -f "$data" "$data.blocks" "$data.proofs" "$data.found"' EXIT
    trap 'exit 1' HUP INT TERM
    copy_all || exit 3
    cat >"$data" || exit 1
    if [ "$(wc -c <"$data")" -ne "$((upto + proofs + kept))" ]; then
        echo "the stream ended early" >&2
        exit 1
    fi
    tail -c "$((proofs + kept))" "$data" >"$data.proofs" || exit 1
    exec 6<"$data.proofs"
    patch_all && with_all prove || exit 3
    TZ=UTC0
    export TZ
    settle_all && place_all || exit 3
    if [ "$kept" -gt 0 ] && [ -d "$state" ]; then
        tail -c "$kept" "$data" >"$data.blocks" && mv -f "$data.blocks" "$state/$key.blocks"
    fi
    exit 0
)

# The lines of descriptor 6 tell what the files must be: sha256, Poly1305. A line that begins with a backslash has a name
# with newlines or backslashes, escaped.
prove() {
    seal_files "$@" >"$data.found" 2>/dev/null || hash_files "$@" >|"$data.found"
    exec 5<"$data.found"
    for file; do
        read -r hash sealed <&6
        read -r found rest <&5
        case ${found#\\} in
        "${hash:-none}" | "${sealed:-none}") ;;
        *)
            echo "the old blocks are not what they were" >&2
            return 1
            ;;
        esac
    done
}

copy_file() {
    [ -f "$1" ] && [ ! -h "$1" ] && cat "$1" >"$2"
}

# patch_file part size-to-cut-at-or-dash block-size [block-of-data block-of-file count]...
patch_file() {
    part=$1
    cut=$2
    block=$3
    shift 3
    while [ $# -gt 0 ]; do
        dd if="$data" of="$part" bs="$block" skip="$1" seek="$2" count="$3" conv=notrunc 2>/dev/null || return 1
        shift 3
    done
    if [ "$cut" != - ]; then dd if=/dev/null of="$part" bs=1 seek="$cut" count=0 2>/dev/null; fi
}

place_file() {
    if [ -d "$2" ]; then return 1; fi
    mv -f "$1" "$2" && drop_old "$3"
}

# Of the openssls that there are, some do not know Poly1305, or may not use it.
seal_files() {
    command -v openssl >/dev/null && openssl dgst -r -mac poly1305 -macopt "hexkey:$seal" "$@"
}

# openssl where there is one: coreutils take four times as long. BusyBox prints a name with a newline on two lines, so
# nobody is told a name.
hash_files() {
    if command -v openssl >/dev/null; then
        openssl dgst -sha256 -r "$@"
        return
    fi
    for file; do sha256sum <"$file" || return 1; done
}
