# The keeper of a machine. Every orphan of the machine becomes its child (keeper_launcher.py sees to that), and it runs the
# scripts whose paths arrive on descriptor 3. It lives as long as the machine runs.

# `jobs` collects whoever has ended, also those that were never jobs of this shell.
trap 'jobs >/dev/null 2>&1' CHLD

run() {
    cd "$HOME" || exit 1
    log=${1%.sh}.log
    { true >"$log"; } 2>/dev/null || log=/dev/null
    exec sh "$1" </dev/null >>"$log" 2>&1
}

newline='
'
path='' lines=0
while :; do
    # A signal interrupts `read` between two lines, never within one: a line is written at once.
    IFS= read -r line <&3 || continue
    # A path may hold a newline: then its lines are put together until they name a file.
    if [ -f "$line" ]; then path=$line; else path=${path:+$path$newline}$line; fi
    lines=$((lines + 1))
    if [ -f "$path" ]; then
        run "$path" 3<&- &
    elif [ "$lines" -lt 16 ]; then
        continue
    fi
    path='' lines=0
done
