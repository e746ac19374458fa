# The first boot of a machine, after the provider's own set-up: what commands may rely on when the first one runs.
# wants_data (GiB), is_snapshot, wants_nfs, wants_driver and wants_python are set in front of this, and data_disk.sh and
# driver.sh stand there. Ends by writing what it could not do into `booted`.
data=/data fstab=/etc/fstab
folder=${HOME:-/root}/.trainyard-boot
problems=''

note() {
    echo "trainyard: $1" >&2
    problems="$problems$1
"
}

install() {
    if command -v apt-get >/dev/null 2>&1; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get install -y -q "$@" || { apt-get update -q && apt-get install -y -q "$@"; }
    elif command -v dnf >/dev/null 2>&1; then
        dnf install -y -q "$@"
    else
        yum install -y -q "$@"
    fi
}

# Disks are touched on the provider's machines only, whoever runs this elsewhere.
is_cloud() { grep -q Alibaba /sys/class/dmi/id/sys_vendor 2>/dev/null; }

command -v tmux >/dev/null 2>&1 || install tmux || note "tmux cannot be installed"
[ -z "$wants_python" ] || command -v python3 >/dev/null 2>&1 || install python3 || note "python3 cannot be installed"
if [ -n "$wants_data" ]; then
    mkdir -p "$data"
    ! is_cloud || mount_data
fi
if [ -n "$wants_nfs" ] && ! command -v mount.nfs >/dev/null 2>&1 && is_cloud; then
    if command -v apt-get >/dev/null 2>&1; then install nfs-common; else install nfs-utils; fi ||
        note "the client for shared storage cannot be installed"
fi
if [ -n "$wants_driver" ] && is_cloud; then install_driver; fi
mkdir -p "$folder"
printf '%s' "$problems" >"$folder/.booted" && mv "$folder/.booted" "$folder/booted"
