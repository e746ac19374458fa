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
umask 022
cd || exit 1
result=$folder/.install.status
rm -f "$result"

# As a file, so that here-documents and continued lines are what they are; -e as the family has it. The person's
# profile comes first, as in the session: conda and the like are on PATH only there, and only in interactive shells.
# 8 carries the output past what a profile prints; 9: a service left running must not hold the lock.
if command -v bash >/dev/null 2>&1; then
    kind=-ic
    for profile in .bash_profile .bash_login .profile; do
        if [ -r "$HOME/$profile" ]; then kind=-lic; fi
    done
    # shellcheck disable=SC2016  # for the inner shell
    bash $kind 'exec >&8 2>&8 8>&-; cd; bash -e "$0"; echo $? >"$1"' "$folder/install.sh" "$result" \
        8>&1 >/dev/null 2>&1 </dev/null 9>&-
fi
# No bash, or a profile that turned into another program.
if [ ! -s "$result" ]; then
    if command -v bash >/dev/null 2>&1; then shell=bash; else shell=sh; fi
    $shell -e "$folder/install.sh" </dev/null 9>&- 2>&1
    echo $? >"$result"
fi
status=$(cat "$result")
if [ "$status" = 0 ]; then
    umask 077
    printf '%s\n' "$digest" >"$marker.$$" && mv -f "$marker.$$" "$marker"
fi
exit "$status"
