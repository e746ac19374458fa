# Who holds this host. POSIX sh; runs under dash, bash and busybox.
#
#   DIR PORT show                 print the lease; status 0 where the host is free, 3 where it is held
#   DIR PORT take ID LEASE        hold the host and print the lease; LEASE is one line of text, and facts about the host
#                                 come on standard input; status 3, and the other's lease, where it is held already
#   DIR PORT end ID WHO           the lease ID is over; WHO is one line of text; status 4 where it was not held
#   DIR PORT check                whether leases can be kept here
#   DIR PORT revoke ID WHO        as end; and where ID is being taken this very moment, it will not be
#   DIR PORT note ID KIND TEXT    remember one line about the lease ID (state, name); status 4 likewise
#
# A lease is a file PLACE.N in DIR, made with ln, which is atomic on every file system and fails where somebody was
# quicker. It never changes; it is over when PLACE.N.ended exists, and the next lease is PLACE.N+1. So nothing is
# ever compared and then changed: a late `end` of an old lease cannot hit a new one, and whoever has an account may
# end a lease, although the sticky DIR lets nobody remove another's file. The highest N is never removed.
# Dying between any two lines leaves the lease taken or not taken, ended or not ended, and perhaps a .new file.

set -u
umask 022 # others must be able to read who holds the host
LC_ALL=C
export LC_ALL

dir=$1 port=$2 verb=$3
shift 3
case $dir in '~/'*) dir=$HOME/${dir#'~/'} ;; esac

# PLACE: the port as the host sees it, and the address where that is a loopback one: somebody who uses 127.0.0.2 and
# 127.0.0.3 as two hosts means two. The name people dial has no part in it, nor has the host key: a host has several,
# and which one is seen depends on the client.
find_place() {
    # shellcheck disable=SC2086  # four words
    set -- ${SSH_CONNECTION:-}
    place=${4:-$port}
    case ${3:-} in
    ::1) place=$place-127.0.0.1 ;;
    127.*) place=$place-$3 ;;
    ::ffff:127.*) place=$place-${3#::ffff:} ;;
    esac
}

fail() {
    printf '%s\n' "$2" >&2
    exit "$1"
}

# Set number, id, lease of the newest lease, and held=1 while it is not over.
look() {
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
        number=10000000 id='' lease='' held=0
        for file in "$dir/$place".[1-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]; do
            number=${file##*.}
        done
        case $number in *[!0-9]*) number=10000000 ;; esac
        [ "$number" = 10000000 ] && return
        file=$dir/$place.$number
        { IFS= read -r id && IFS= read -r lease; } 2>/dev/null <"$file"
        [ -e "$file.ended" ] || held=1
        # Gone meanwhile: a newer one was taken and this one swept (the file first, .ended after it). Look again.
        [ -e "$file" ] || continue
        id=${id:-$number} # a power failure may leave an empty file; it can still be seen and ended
        return
    done
    fail 6 "the leases in $dir cannot be read"
}

# Builtins only: listing machines asks every host, and a process more on each is felt.
show() {
    printf 'place=%s\n' "$place"
    [ $held = 1 ] || return 0
    file=$dir/$place.$number
    printf 'id=%s\nlease=%s\n' "$id" "$lease"
    [ -O "$file" ] && printf 'mine=yes\n'
    for kind in state name; do
        [ -e "$file.$kind" ] && IFS= read -r text 2>/dev/null <"$file.$kind" && printf '%s=%s\n' "$kind" "$text"
    done
    {
        read -r _ && read -r _
        while IFS= read -r text; do printf 'fact:%s\n' "$text"; done
    } <"$file"
    return 3
}

ensure_dir() {
    if [ ! -d "$dir" ]; then
        mkdir -p "${dir%/*}" 2>/dev/null
        (umask 0 && mkdir -m 1777 "$dir") 2>/dev/null
    fi
    [ -k "$dir" ] || chmod 1777 "$dir" 2>/dev/null
    [ -d "$dir" ] && [ -w "$dir" ] || fail 5 "$dir cannot be written to by $(id -un)"
}

# Make a file of one's own with these lines, never through somebody's link.
write_new() {
    new=$dir/.$1.$$.new
    shift
    (set -C && { printf '%s\n' "$@" && if [ "$verb" = take ]; then cat; fi; } >"$new") 2>/dev/null || {
        rm -f "$new"
        fail 6 "a file cannot be written in $dir: is the disk full?"
    }
}

sweep() {
    for file in "$dir/$place".[1-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]; do
        if [ "${file##*.}" -lt "$number" ]; then
            rm -f "$file" "$file".* # what belongs to other people stays until they take a lease
        fi
    done 2>/dev/null
    find "$dir" \( -name '.*.new' -o -name '.*.void' \) -type f -mtime +1 -exec rm -f {} + 2>/dev/null
}

take() {
    ensure_dir
    write_new "$1" "$1" "$2"
    while :; do
        look
        if [ $held = 1 ]; then
            rm -f "$new"
            show
            [ "$id" = "$1" ] # then the answer to an earlier call was lost
            return $((3 * $?))
        fi
        mine=$((number + 1))
        if ln "$new" "$dir/$place.$mine" 2>/dev/null; then
            look
            if [ "$number" = "$mine" ] && [ $held = 1 ]; then
                rm -f "$new"
                if [ -e "$dir/.$1.void" ]; then # whoever asked has given up, and nobody would know of this lease
                    end "$1" revoked
                    rm -f "$dir/.$1.void"
                    return 4
                fi
                sweep
                show
                return 0
            fi
            # Else the count had gone on, and the number we filled had been swept; or somebody removed files by hand.
            [ "$number" = "$mine" ] || rm -f "$dir/$place.$mine"
        elif [ ! -e "$dir/$place.$mine" ]; then
            look
            [ "$number" -ge "$mine" ] && continue # taken, ended and swept within a moment
            rm -f "$new"
            fail 6 "no link can be made in $dir"
        fi
    done
}

end() {
    look
    [ $held = 1 ] && [ "$id" = "$1" ] || return 4
    ensure_dir
    write_new "$1" "$2"
    ln "$new" "$dir/$place.$number.ended" 2>/dev/null
    rm -f "$new"
    # The lease itself may be swept by now: a newer one was taken, so this one was over.
    [ -e "$dir/$place.$number.ended" ] || [ ! -e "$dir/$place.$number" ] || fail 6 "no link can be made in $dir"
}

# Either `take` sees the .void file after its ln, or we see its lease after making the file.
revoke() {
    ensure_dir
    void=$dir/.$1.void
    (set -C && : >"$void") 2>/dev/null
    end "$1" "$2" && rm -f "$void"
    return 0
}

note() {
    look
    [ $held = 1 ] && [ "$id" = "$1" ] || return 4
    ensure_dir
    write_new "$1" "$3"
    mv -f "$new" "$dir/$place.$number.$2" 2>/dev/null && return
    rm -f "$new"
    fail 5 "the lease of $(id -un) cannot be changed in $dir"
}

check() {
    ensure_dir
    write_new "check$(id -u)" ""
    ln "$new" "$new.link" 2>/dev/null || {
        rm -f "$new"
        fail 6 "no link can be made in $dir"
    }
    rm -f "$new" "$new.link"
}

find_place
case $verb in
show)
    look
    show
    ;;
take | end | revoke | note | check) "$verb" "$@" ;;
*) fail 2 "no such verb: $verb" ;;
esac
