# Does the supervisor of a session live? Expects D, sets pid. Builtins only: every client asks this of every machine.
alive() {
    if [ ! -s "$D/pid" ] || ! read -r pid < "$D/pid" || [ ! -e "/proc/$pid/exe" ]; then return 1; fi
    # Every sh drops the NULs between the words; a home with a newline in its name makes several lines.
    while IFS= read -r cmdline || [ -n "$cmdline" ]; do
        case $cmdline in *session.sh*) return 0 ;; esac
    done < "/proc/$pid/cmdline"
    return 1
} 2>/dev/null
