# Run an install script once. Set in front by setup.py: folder and marker (shell words), digest. stdin: the script.
# Prints what the script printed; the status is the script's own. Only success is noted: a failed one runs again.
umask 077
mkdir -p "$folder" || exit 1
if [ "$(cat "$marker" 2>/dev/null)" = "$digest" ]; then exit 0; fi
# Two clients that make the same job at once: the second waits, then finds it done.
if command -v flock >/dev/null 2>&1; then
    exec 9>"$folder/.install.lock"
    flock 9
    if [ "$(cat "$marker" 2>/dev/null)" = "$digest" ]; then exit 0; fi
fi
rm -f "$marker"
cat >"$folder/install.sh.$$" && mv -f "$folder/install.sh.$$" "$folder/install.sh" || exit 1
if command -v bash >/dev/null 2>&1; then shell=bash; else shell=sh; fi
umask 022
cd || exit 1
# As a file, so that here-documents and continued lines are what they are; -e as the family has it.
# 9: a service that the script leaves running must not hold the lock.
$shell -e "$folder/install.sh" </dev/null 9>&- 2>&1
status=$?
if [ "$status" = 0 ]; then
    umask 077
    printf '%s\n' "$digest" >"$marker.$$" && mv -f "$marker.$$" "$marker"
fi
exit "$status"
