# End every process of a machine on this host. POSIX sh; runs under dash, bash and busybox.
#
#   ID GRACE      ID: of the lease. GRACE: tenths of a second between SIGTERM and SIGKILL.
#
# A process belongs to the machine if its environment has TRAINYARD_MACHINE=<name>:ID (or its command line: a shell that
# was told to export it does not have it in the environment it was started with), if it descends from one that does
# (sudo and `env -i` lose the environment), or if it is in a session of theirs (daemons lose their parent). What loses
# all three at once - environment, parent and session - cannot be told from a stranger.
# Never touched: this script and its ancestors, which are sshd. Status 1, with the pids, where some do not end.

set -u
LC_ALL=C
export LC_ALL
id=$1 ticks=$2
pattern="TRAINYARD_MACHINE=[A-Za-z0-9._+=@-]*:$id([^A-Za-z0-9]|\$)"
sessions=' '
told=' '
cd /proc || exit 6
[ -r self/stat ] || {
    echo "this host has no /proc" >&2
    exit 6
}

parent_and_session() { # of process $1; fails where it has gone or is a zombie
    { IFS= read -r stat <"$1/stat"; } 2>/dev/null || return 1
    # shellcheck disable=SC2086  # words: state, parent, group, session
    set -- ${stat##*) }
    parent=$2 session=$4
    [ "$1" != Z ] && [ "$1" != X ]
}

spared=" $$ "
pid=$$
while parent_and_session "$pid" && [ "$parent" -gt 0 ]; do
    pid=$parent
    spared="$spared$pid "
done

# The pids with the mark, some of them twice. Some greps stop at a NUL byte; for them each file is translated.
if [ "$(printf 'a\0b\n' | grep -c b)" = 1 ]; then
    marked() { grep -lsE -e "$pattern" [0-9]*/environ [0-9]*/cmdline | while IFS=/ read -r pid _; do echo "$pid"; done; }
else
    marked() {
        for each in [0-9]*; do
            printf '\n%s ' "$each"
            cat "$each/environ" "$each/cmdline" | tr '\0\n' '  '
        done 2>/dev/null | grep -E -e "$pattern" | while read -r pid _; do echo "$pid"; done
    }
fi

# found: all pids of the machine. Sessions once known stay known, since their leader may be the first to go.
scan() {
    found=' ' table=''
    for pid in $(marked); do
        case $spared$found in *" $pid "*) continue ;; esac
        found="$found$pid "
    done
    [ "$found$sessions" = '  ' ] && return
    for pid in [0-9]*; do
        case $spared in *" $pid "*) continue ;; esac
        parent_and_session "$pid" && table="$table $pid:$parent:$session"
    done
    grown=1
    while [ $grown = 1 ]; do
        grown=0
        for row in $table; do
            pid=${row%%:*} session=${row##*:} parent=${row#*:}
            parent=${parent%:*}
            case $found in
            *" $pid "*) ;;
            *)
                case $found$sessions in
                *" $parent "* | *" $session "*) ;;
                *) continue ;;
                esac
                # A parent's number may stand in the list of sessions, but then it led the session: it is right.
                found="$found$pid "
                grown=1
                ;;
            esac
            # Its session is the machine's if it leads it, or if the leader has gone (it was of the machine too).
            [ "$pid" = "$session" ] || [ ! -d "$session" ] || continue
            case $sessions in *" $session "*) ;; *) sessions="$sessions$session " grown=1 ;; esac
        done
    done
    # What has gone since `marked` looked is no longer in the table.
    left=' '
    for row in $table; do
        case $found in *" ${row%%:*} "*) left="$left${row%%:*} " ;; esac
    done
    found=$left
}

# A process that is stopped must go on to be able to end.
tell() {
    for pid in $found; do
        case $told in *" $pid "*) continue ;; esac
        told="$told$pid "
        kill -TERM "$pid" 2>/dev/null
        kill -CONT "$pid" 2>/dev/null
    done
}

nap() { sleep 0.05 2>/dev/null || sleep 1; }

ticks=$((ticks * 2))
while scan && [ "$found" != ' ' ] && [ $ticks -gt 0 ]; do
    tell
    nap
    ticks=$((ticks - 1))
done
rounds=100 # five seconds: what SIGKILL does not end by then hangs in the kernel, or is not ours to end
while [ "$found" != ' ' ] && [ $rounds -gt 0 ]; do
    # shellcheck disable=SC2086  # words are wanted
    kill -KILL $found 2>/dev/null
    nap
    scan
    rounds=$((rounds - 1))
done
[ "$found" = ' ' ] && exit 0
echo "$found" >&2
exit 1
