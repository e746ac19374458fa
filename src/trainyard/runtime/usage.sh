# Print what a machine uses now, one reading a line, for usage.py. POSIX sh; what cannot be read is left out.
# `previous` is set in front: the counters of an earlier reading, or empty for two looks a fifth of a second apart.
# devices.sh comes after it.
LC_ALL=C
export LC_ALL

# Processes that carry the mark of this machine: where several machines share one computer, each sees its own share.
own_processes() {
    [ -n "${TRAINYARD_MACHINE-}" ] || return 0
    for environ in $(grep -lF "TRAINYARD_MACHINE=$TRAINYARD_MACHINE" /proc/[0-9]*/environ 2>/dev/null); do
        tr '\0' '\n' 2>/dev/null <"$environ" | grep -qxF "TRAINYARD_MACHINE=$TRAINYARD_MACHINE" || continue
        pid=${environ#/proc/}
        echo "${pid%/environ}"
    done
}

# Sets ticks, resident (pages) and count over the processes in $own.
add_up_own() {
    ticks=0 resident=0 count=0
    for pid in $own; do
        stat=''
        # A program's name may hold blanks, brackets and line breaks: what counts comes after the last bracket.
        while IFS= read -r line || [ -n "$line" ]; do stat=$stat$line; done 2>/dev/null <"/proc/$pid/stat" || continue
        # shellcheck disable=SC2086  # a list of numbers
        set -- ${stat##*)}
        [ $# -ge 22 ] && [ "$1" != Z ] || continue
        shift 11
        ticks=$((ticks + $1 + $2)) count=$((count + 1))
        shift 10
        resident=$((resident + $1))
    done
}

counters() {
    read -r _ user nice system idle waiting irq softirq steal _ </proc/stat || return
    busy=$((user + nice + system + ${irq:-0} + ${softirq:-0} + ${steal:-0}))
    add_up_own
    echo "$busy $((busy + idle + ${waiting:-0})) $ticks"
}

own=$(own_processes)
if [ -r /proc/stat ]; then
    if [ -z "$previous" ]; then
        previous=$(counters)
        sleep 0.2 2>/dev/null || sleep 1
    fi
    echo "before $previous"
    echo "after $(counters)"
    add_up_own
    page=$(getconf PAGESIZE 2>/dev/null) || page=4096
    [ -z "${TRAINYARD_MACHINE-}" ] || echo "own $count $((resident * (page / 1024)))"
fi
[ ! -r /proc/loadavg ] || echo "load $(cat /proc/loadavg)"
cpus=$(nproc 2>/dev/null) || cpus=$(grep -c '^processor' /proc/cpuinfo 2>/dev/null) || cpus=0
echo "cpus $cpus"
[ ! -r /proc/meminfo ] || sed -n 's/^\([A-Za-z]*\): *\([0-9]*\) kB$/memory \1 \2/p' /proc/meminfo
# -P: one line a file system, however long its name; the last line is the one asked for.
df -Pk "${HOME:-/}" 2>/dev/null | sed -n '$s/^/disk /p'
