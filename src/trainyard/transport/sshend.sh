# Ends the process groups of processes: signals, a grace, SIGKILL. Arguments: signals, tenths of a second, pids.
# No `--` for kill: dash and busybox take it for a process id in some forms.
signals=$1
grace=$2
shift 2
groups=
for pid; do
    # The group is the process's own unless a wrapper around the login shell forked; /proc knows, where there is one.
    group=$pid
    if line=$(cat "/proc/$pid/stat" 2>/dev/null); then
        line=${line##*) }
        # shellcheck disable=SC2086  # words on purpose: state, parent, group
        group=$(set -- $line; echo "$3")
    fi
    groups="$groups $group"
done
for group in $groups; do
    for signal in $signals CONT; do
        kill "-$signal" "-$group" 2>/dev/null
    done
done
while [ "$grace" -gt 0 ]; do
    left=
    for group in $groups; do
        kill -0 "-$group" 2>/dev/null && left="$left $group"
    done
    [ "$left" ] || exit 0
    groups=$left
    grace=$((grace - 1))
    sleep 0.1
done
for group in $groups; do
    kill -KILL "-$group" 2>/dev/null
done
exit 0
