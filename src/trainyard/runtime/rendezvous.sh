# Write the rendezvous files of one task. Read by rendezvous.py, which sets in front of it:
#   folder     where the files go, absolute
#   table      one line a task: address, slots, devices
#   exports    the text of env.sh
#   tf_config  the text of tf_config.json
# Every file is complete or the old one: a training that starts meanwhile never reads a half.
set -eu
umask 077
mkdir -p "$folder"
put() {
    cat >"$folder/.$1.$$"
    mv -f "$folder/.$1.$$" "$folder/$1"
}
trap 'rm -f "$folder"/.*."$$"' EXIT

# A colon parts an address from a number, so an IPv6 address stands in brackets there.
bracketed() {
    case $address in *:*) host="[$address]" ;; *) host=$address ;; esac
}

printf '%s\n' "$table" | while read -r address slots devices; do
    echo "$address slots=$slots"
done | put hostfile
printf '%s\n' "$table" | while read -r address slots devices; do
    bracketed
    echo "$host:$slots"
done | put hostfile.mpich
printf '%s\n' "$table" | while read -r address slots devices; do
    echo "$address slots=$slots"
done | put hostfile.horovod
# DeepSpeed starts one process for each slot and binds it to an accelerator; without one it is one process a task.
printf '%s\n' "$table" | while read -r address slots devices; do
    [ "$devices" -gt 0 ] || devices=1
    echo "$address slots=$devices"
done | put hostfile.deepspeed
printf '%s\n' "$tf_config" | put tf_config.json
printf '%s\n' "$exports" | put env.sh
