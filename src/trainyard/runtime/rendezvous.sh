# Write the rendezvous files of one task. Read by rendezvous.py, which sets in front of it:
#   folder     where the files go, absolute
#   table      one line a task: address, slots, devices
#   exports    the text of env.sh
#   tf_config  the text of tf_config.json
#   slots_line, colon_line  how host files name a host and a number, for printf
# Every file is complete or the old one: a training that starts meanwhile never reads a half.
set -eu
umask 077
new=$folder/.new.$$
mkdir -p "$new"
trap 'rm -rf "$new"' EXIT

while read -r address slots devices; do
    printf "$slots_line\n" "$address" "$slots" >>"$new/hostfile"
    printf "$slots_line\n" "$address" "$slots" >>"$new/hostfile.horovod"
    # A colon parts an address from a number, so an IPv6 address stands in brackets there.
    case $address in *:*) host="[$address]" ;; *) host=$address ;; esac
    printf "$colon_line\n" "$host" "$slots" >>"$new/hostfile.mpich"
    # DeepSpeed starts one process for each slot and binds it to an accelerator; without one it is one process a task.
    [ "$devices" -gt 0 ] || devices=1
    printf "$slots_line\n" "$address" "$devices" >>"$new/hostfile.deepspeed"
done <<END
$table
END
printf '%s\n' "$tf_config" >"$new/tf_config.json"
printf '%s\n' "$exports" >"$new/env.sh"
mv -f "$new"/* "$folder"
