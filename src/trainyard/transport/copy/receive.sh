# Takes one stream from the client; `sinks.sh` stands before this and says where it goes. `stamp` is not empty where
# this stream completes an upload.
cd || exit 1
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
