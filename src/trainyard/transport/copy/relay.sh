# One machine of a relay: the stream goes into its own sink and on to the next machines, as it comes. `sinks.sh` and `peer`
# stand before this. The client started it, over its own connection, and hears from it alone how it went: machines are not
# asked about each other, and nothing but the stream passes between them.
#
#   index     our place in the relay; 0 gets the stream from the client, the others through a pipe that the machine before fills
#   key_name  names the pipe's folder; only who was told can guess it
#   next      places of the machines that we pass the stream on to
#   length expected   of the whole stream, and its sha256
#   key_file known_hosts   what lets us in at the next machine
cd || exit 1

say() { printf '%s %s\n' "$mark" "$*"; }

work=${TMPDIR:-/tmp}/trainyard-relay.$key_name.$index
mkdir -m 700 "$work" || {
    say failed "no temporary folder"
    exit 0
}
spool=
clean() {
    trap '' HUP INT TERM
    kill -TERM 0 2>/dev/null # our process group: nothing of ours may wait for a machine that never ends
    rm -rf "$work"
    if [ -n "$spool" ]; then rm -f "$spool"; fi
}
trap clean EXIT
trap 'exit 1' HUP INT TERM
# A next machine, or our own disk, may fail; tee then goes on with the others.
trap '' PIPE
mkfifo "$work/in" "$work/sink" "$work/hash" "$work/sum" || {
    say failed "no pipe in $work"
    exit 0
}

check_sum() {
    read -r sum rest <&8
    if [ "$sum" = "$expected" ]; then return 0; fi
    echo "the stream was damaged on its way" >&2
    return 9
}

# Our own copy. It counts only when the hash of all that came is the expected one. Of an archive and of blocks nothing is
# looked at before that: what they name, and where, is not for the machine before us to say.
take() {
    exec 8<"$work/sum" # now, since the hash is not begun before its result has a reader
    if [ "$sink" = part ]; then
        receive_part
        status=$?
        exec </dev/null # a sink that failed early must not hold up the others
        if [ "$status" != 0 ]; then return "$status"; fi
        check_sum || {
            rm -f "$part"
            return 9
        }
        if [ "$complete" = 1 ]; then finish_part || return 1; fi
    else
        (umask 077 && set -C && cat >"$spool")
        status=$?
        exec </dev/null
        if [ "$status" != 0 ]; then return "$status"; fi
        check_sum || return 9
        "receive_$sink" <"$spool" || return
    fi
    if [ -n "$stamp" ]; then
        write_stamp "$stamp"
        rm -f "$state/$key.bad"
    fi
}

# Waits for the pipe of the next machine, then fills it. The words are run there.
fill='to=${TMPDIR:-/tmp}/trainyard-relay.$name/in
tries=0
while ! [ -p "$to" ] && [ "$tries" -lt 50 ]; do tries=$((tries + 1)); sleep 0.1; done
[ -p "$to" ] && exec cat >"$to"'

pass_on() {
    peer "$1"
    ssh -T -x -a -F /dev/null -i "$key_file" -p "$port" \
        -o IdentitiesOnly=yes -o IdentityAgent=none -o BatchMode=yes -o StrictHostKeyChecking=yes -o UpdateHostKeys=no \
        -o UserKnownHostsFile="$known_hosts" -o GlobalKnownHostsFile=/dev/null \
        -o ClearAllForwardings=yes -o PermitLocalCommand=no -o ControlMaster=no -o ControlPath=none \
        -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 -o Compression=no \
        -o Ciphers=^aes128-gcm@openssh.com -o KexAlgorithms=^curve25519-sha256 \
        "$login" "exec sh -c 'name=$key_name.$1; $fill'" >/dev/null 2>"$work/ssh$1"
    if [ $? != 0 ]; then say unreached "$1" "$(tail -c 2000 "$work/ssh$1" | tail -n 1)"; fi
}

if [ "$sink" != part ]; then
    mkdir -p "$base" || {
        say failed "no folder $base"
        exit 0
    }
    spool=$base/.trainyard-part-$mark
fi
relayed=1
exec 3<&0 # what runs in the background has no input else
(take) <"$work/sink" >/dev/null 2>"$work/errors" &
own=$!
sha256sum <"$work/hash" >"$work/sum" &
passing=
set -- "$work/sink" "$work/hash"
for one in $next; do
    mkfifo "$work/to$one"
    pass_on "$one" <"$work/to$one" &
    passing="$passing $!"
    set -- "$@" "$work/to$one"
done
if [ "$index" = 0 ]; then
    head -c "$length" <&3 | tee "$@" >/dev/null 2>&1 &
else
    # When the client closes our input, nobody comes any more: a stream that was never begun ends here.
    (cat <&3 >/dev/null; exec true <>"$work/in") &
    head -c "$length" <"$work/in" | tee "$@" >/dev/null 2>&1 &
fi
wait "$own"
status=$?
if [ "$status" = 0 ]; then say ok; else say failed "$(grep -v -e 'exit status' -e 'not recoverable' "$work/errors" | tail -n 1)"; fi
if [ -n "$passing" ]; then wait $passing; fi
