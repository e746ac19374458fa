# Takes one stream from the client; `sinks.sh` stands before this and says where it goes. `stamp` is not empty where
# this stream completes an upload; `wide` is 1 where it is long.
cd || exit 1
# A pipe holds 64 KiB, so sshd and the sink would wait for each other sixteen times a megabyte: a sixth more work for
# both. 1031 is F_SETPIPE_SZ. Without perl, or a pipe, it stays as it is.
if [ "${wide:-0}" = 1 ]; then perl -e 'fcntl(STDIN, 1031, 1048576)' 2>/dev/null; fi
"receive_$sink"
status=$?
if [ "$status" = 0 ]; then
    if [ -n "$stamp" ]; then
        write_stamp "$stamp"
        rm -f "$state/$key.bad"
    fi
    printf '%s ok\n' "$mark"
else
    printf '%s failed %s\n' "$mark" "$status"
fi
