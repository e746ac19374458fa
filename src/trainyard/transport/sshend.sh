# Ends the process groups of processes: signals, a grace, SIGKILL. Arguments: signals, tenths of a second, pids.
# No `--` for kill: dash and busybox take it for a process id in some forms.
signals=$1
grace=$2
shift 2

# Sets `state` and `group` from a /proc/PID/stat file; the program's name in it may hold anything.
look() {
    read -r line 2>/dev/null <"$1" || return 1
    line=${line##*) }
    state=${line%% *}
    line=${line#* * }
    group=${line%% *}
}

# Whether anybody in the groups still runs. Ended processes whose parent does not bury them (a container without an
# init) keep their group for ever and do not count.
any_left() {
    for group in $groups; do
        kill -0 "-$group" 2>/dev/null && break
    done || return 1
    [ -r /proc/self/stat ] || return 0
    for stat in /proc/[0-9]*/stat; do
        look "$stat" && [ "$state" != Z ] || continue
        case " $groups " in *" $group "*) return 0 ;; esac
    done
    return 1
}

groups=
for pid; do
    # The group is the process's own, unless a wrapper around the login shell forked.
    look "/proc/$pid/stat" || group=$pid
    groups="$groups $group"
done
for group in $groups; do
    for signal in $signals CONT; do
        kill "-$signal" "-$group" 2>/dev/null
    done
done
[ "$grace" -gt 0 ] && sleep 0.01
while [ "$grace" -gt 0 ]; do
    any_left || exit 0
    grace=$((grace - 1))
    sleep 0.1
done
for group in $groups; do
    kill -KILL "-$group" 2>/dev/null
done
exit 0
