# The first process of a machine: brings it up, keeps sshd running, collects whoever has ended. $1 is what stands in
# front of the machine's paths: nothing where it has a view of its own, else its root folder.
root=$1
config=$root/run/trainyard/sshd_config
[ -e "$config" ] || config=$root/etc/ssh/sshd_config
sshd=$TRAINYARD_SSHD look=$TRAINYARD_LOOK_SECONDS
unset TRAINYARD_SSHD TRAINYARD_LOOK_SECONDS
cloud=$root/var/lib/cloud/instance
exec </dev/null >>"$root/var/log/boot.log" 2>&1

# As cloud-init: once in the life of the machine, in the order of their names, the login is open meanwhile.
run_user_data() {
    cd "${root:-/}" || exit 1
    status=done
    for script in "$cloud"/scripts/*; do
        [ -f "$script" ] || continue
        "$script" || { echo "$script ended with status $?" && status=error; }
    done
    show_host_keys >>"$root/dev/console"
    echo "$status" >"$cloud/.result" && mv "$cloud/.result" "$cloud/result.txt"
    date >"$cloud/boot-finished"
}

# As cloud-init prints them on the console at the end of the first boot.
show_host_keys() {
    head="<14>$(date '+%b %d %H:%M:%S') cloud-init:"
    echo "$head #############################################################"
    echo "$head -----BEGIN SSH HOST KEY FINGERPRINTS-----"
    for key in "$root"/etc/ssh/ssh_host_*_key.pub; do echo "$head $(ssh-keygen -lf "$key")"; done
    echo "$head -----END SSH HOST KEY FINGERPRINTS-----"
    echo "$head #############################################################"
    echo "-----BEGIN SSH HOST KEY KEYS-----"
    cat "$root"/etc/ssh/ssh_host_*_key.pub
    echo "-----END SSH HOST KEY KEYS-----"
}

# As cloud-init too: what was put there runs at every boot.
run_each_boot() {
    for script in "$root"/var/lib/cloud/scripts/per-boot/*; do
        [ ! -x "$script" ] || "$script" || echo "$script ended with status $?"
    done
}

# All others end, then this one, and the kernel ends whoever is left with it. Elsewhere the emulator does it.
power_off() {
    trap '' TERM
    if [ $$ -eq 1 ]; then
        kill -TERM -1
        kill -CONT -1
        looks=0
        while [ $looks -lt 20 ] && kill -0 -1 2>/dev/null; do
            looks=$((looks + 1))
            sleep 0.05
        done
    fi
    [ -z "$pid" ] || kill "$pid" 2>/dev/null
    exit 0
}

# A machine whose folder was deleted belongs to no emulator any more, and nobody else would end it.
look_for_folder() {
    while sleep "$look"; do
        [ ! -e "$root/run/trainyard/init.sh" ] || continue
        case $root in /tmp/tym-*) rm -rf -- "$root" ;; esac
        kill -TERM $$
        exit
    done
}

set -- "$root"/etc/ssh/ssh_host_*_key
[ -e "$1" ] || ssh-keygen -q -t ed25519 -N '' -C "root@$HOSTNAME" -f "$root/etc/ssh/ssh_host_ed25519_key"
run_each_boot >>"$root/var/log/cloud-init-output.log" 2>&1
if [ ! -e "$cloud/started" ]; then
    mkdir -p "$cloud"
    echo >"$cloud/started" # not `:`, at whose failure the shell would end, and the machine with it
    run_user_data >>"$root/var/log/cloud-init-output.log" 2>&1 &
fi
look_for_folder &
pid=''
trap '[ -z "$pid" ] || kill -HUP "$pid"' HUP
trap power_off TERM
while :; do
    "$sshd" -D -E "$root/var/log/auth.log" -f "$config" &
    pid=$!
    # `wait` also comes back for a signal, and collects orphans all the time.
    while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done
    pid=''
    sleep 1
done
