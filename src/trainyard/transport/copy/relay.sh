# One machine of a relay: the stream goes into its own sink and on to the next machines, as it comes. `sinks.sh` and
# `peer` stand before this. Every machine runs the same $plan; $me says which one it is.
#
#   count     machines in the relay
#   fan       machine n feeds the machines fan * n + 1 and up, `fan` of them
#   expected  sha256 of the whole stream
#   key_file known_hosts   what lets us in at the next machine
cd || exit 1

say() { printf '%s %s %s\n' "$mark" "$me" "$*"; }

work=$(mktemp -d "${TMPDIR:-/tmp}/trainyard-relay.XXXXXX") || {
    say failed "no temporary folder"
    exit 0
}
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
# A next machine, or our own disk, may fail; tee then goes on with the others.
trap '' PIPE
mkfifo "$work/sink" "$work/hash" "$work/sum" || {
    say failed "no pipe in $work"
    exit 0
}

# Our own copy. It counts only when the hash of all that came is the expected one.
take() {
    exec 8<"$work/sum" # now, since the hash is not begun before its result has a reader
    "receive_$sink"
    status=$?
    exec </dev/null # a sink that failed early must not hold up the others
    read -r sum rest <&8
    if [ "$status" != 0 ]; then return "$status"; fi
    if [ "$sum" != "$expected" ]; then
        echo "the stream was damaged on its way" >&2
        # What has been unpacked looks right by size and time. This makes the next survey distrust it.
        if [ "$sink" = part ]; then rm -f "$part"; else true >"$state/$key.bad"; fi
        return 9
    fi
    if [ "$sink" = part ] && [ "$complete" = 1 ]; then finish_part || return 1; fi
    if [ -n "$stamp" ]; then
        write_stamp "$stamp"
        rm -f "$state/$key.bad"
    fi
}

pass_on() {
    peer "$1"
    ssh -T -x -a -F /dev/null -i "$key_file" -p "$port" \
        -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=yes \
        -o UserKnownHostsFile="$known_hosts" -o GlobalKnownHostsFile=/dev/null \
        -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 -o Compression=no \
        -o Ciphers=^aes128-gcm@openssh.com -o KexAlgorithms=^curve25519-sha256 \
        "$login" "exec sh -c 'me=$1; plan=$plan; eval \"\$(printf %s \"\$plan\" | base64 -d)\"'" 2>"$work/ssh$1"
    if [ $? != 0 ]; then
        printf '%s %s failed %s\n' "$mark" "$1" "$(tail -n 1 "$work/ssh$1")"
    fi
}

relayed=1
(take) <"$work/sink" >/dev/null 2>"$work/errors" &
own=$!
sha256sum <"$work/hash" >"$work/sum" &
set -- "$work/sink" "$work/hash"
next=$((fan * me + 1))
last=$((fan * me + fan))
while [ "$next" -le "$last" ] && [ "$next" -lt "$count" ]; do
    mkfifo "$work/to$next"
    pass_on "$next" <"$work/to$next" &
    set -- "$@" "$work/to$next"
    next=$((next + 1))
done
tee "$@" >/dev/null 2>&1
wait "$own"
status=$?
wait
if [ "$status" = 0 ]; then say ok; else say failed "$(grep -v -e 'exit status' -e 'not recoverable' "$work/errors" | tail -n 1)"; fi
