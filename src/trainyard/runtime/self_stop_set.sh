# Arranges that this machine stops by itself. Set in front by self_stop.py: client (a name), and the texts terms, program and
# script. Says in one sentence why it cannot be, with status 1. A second time replaces the first.
umask 077
folder=$HOME/.trainyard/self-stop
mkdir -p "$folder/clients" || exit 1
if ! command -v python3 >/dev/null 2>&1; then echo 'it has no python3' && exit 1; fi
put() { printf '%s\n' "$2" >"$folder/$1.new" && mv -f "$folder/$1.new" "$folder/$1"; }
put stop.py "$program" && put self_stop.sh "$script" || exit 1
# Before anything is promised: the role and its rights.
arguments=''
eval "$terms"
python3 "$folder/stop.py" --check $arguments || exit 1
echo >"$folder/since"
echo >"$folder/clients/$client"
rm -f "$folder/ended" "$folder"/silent.*
put terms "$terms" || exit 1
# cloud-init runs what lies there at each boot.
boots=/var/lib/cloud/scripts/per-boot
if mkdir -p "$boots" 2>/dev/null && [ -w "$boots" ]; then
    umask 022
    {
        echo '#!/bin/sh'
        printf "HOME='%s' setsid sh '%s/self_stop.sh' boot </dev/null >/dev/null 2>&1 &\n" "$HOME" "$folder"
    } >"$boots/trainyard-self-stop.new" && chmod 755 "$boots/trainyard-self-stop.new" &&
        mv -f "$boots/trainyard-self-stop.new" "$boots/trainyard-self-stop.sh"
fi
# One that watches already reads the new terms at its next look, but may have an older text.
setsid sh "$folder/self_stop.sh" watch </dev/null >/dev/null 2>&1 &
