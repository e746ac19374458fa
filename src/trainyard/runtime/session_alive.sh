# What a session is doing. Expects D. Builtins only: every client asks this of every machine.
#     alive      does its supervisor live? Sets pid
#     ty_busy    with which command is it busy? Sets running (- for none) and last, the newest command's number
alive() {
    if [ ! -s "$D/pid" ] || ! read -r pid < "$D/pid" || [ ! -e "/proc/$pid/exe" ]; then return 1; fi
    # Every sh drops the NULs between the words; a home with a newline in its name makes several lines.
    while IFS= read -r cmdline || [ -n "$cmdline" ]; do
        case $cmdline in *session.sh*) return 0 ;; esac
    done < "/proc/$pid/cmdline"
    return 1
} 2>/dev/null

# A command that was submitted keeps it busy, too, where the shell has not come to it yet.
ty_busy() {
    running= last=
    if [ -s "$D/current" ]; then read -r running < "$D/current"; fi
    if [ -s "$D/last" ]; then read -r last < "$D/last"; fi
    # Empty where a file is just being written.
    running=${running:--} last=${last:-0}
    if [ "$running" != - ] || [ ! -e "$D/$last.cmd" ] || [ -s "$D/$last.status" ] || ! alive; then return 0; fi
    running=$last
    while [ -e "$D/$((running - 1)).cmd" ] && [ ! -s "$D/$((running - 1)).status" ]; do running=$((running - 1)); done
}
