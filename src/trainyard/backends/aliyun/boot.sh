# The first boot of a machine, after the provider's own set-up: what commands may rely on when the first one runs.
# wants_data (GiB), wants_nfs, wants_driver and wants_python are set in front of this. Ends by writing what it could not do into `booted`.
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

# The whole disk of the size that was asked for which nothing is mounted from; it may take a moment to appear. By its
# size, since some types have disks of their own, whose files go when the machine is stopped.
find_disk() {
    looks=0
    while [ $looks -lt 60 ]; do
        for name in $(lsblk -dnr -o NAME,TYPE | awk '$2 == "disk" { print $1 }'); do
            bytes=$(lsblk -dnrb -o SIZE "/dev/$name")
            [ "$bytes" = $((wants_data * 1024 * 1024 * 1024)) ] || continue
            if ! lsblk -nr -o MOUNTPOINT "/dev/$name" | grep -q .; then
                echo "/dev/$name"
                return 0
            fi
        done
        looks=$((looks + 1))
        sleep 1
    done
    return 1
}

# A disk from a snapshot has its files already: on the disk itself, or on its first partition.
mount_data() {
    mkdir -p /data
    is_cloud || return 0
    disk=$(find_disk) || { note "the data disk did not appear" && return 0; }
    part=$(lsblk -nr -o NAME,FSTYPE "$disk" | awk '$2 != "" { print $1; exit }')
    if [ -z "$part" ]; then
        if lsblk -nr -o TYPE "$disk" | grep -q part; then
            note "$disk has partitions that cannot be read, so it was left as it is" && return 0
        fi
        mkfs.ext4 -q -m 0 "$disk" || { note "$disk cannot be formatted" && return 0; }
        part=${disk#/dev/}
    fi
    id=$(blkid -s UUID -o value "/dev/$part")
    grep -q "$id" /etc/fstab || echo "UUID=$id /data auto defaults,nofail 0 2" >>/etc/fstab
    mount /data || note "/dev/$part cannot be mounted on /data"
}

command -v tmux >/dev/null 2>&1 || install tmux || note "tmux cannot be installed"
[ -z "$wants_python" ] || command -v python3 >/dev/null 2>&1 || install python3 || note "python3 cannot be installed"
[ -z "$wants_data" ] || mount_data
if [ -n "$wants_nfs" ] && ! command -v mount.nfs >/dev/null 2>&1 && is_cloud; then
    if command -v apt-get >/dev/null 2>&1; then install nfs-common; else install nfs-utils; fi ||
        note "the client for shared storage cannot be installed"
fi
if [ -n "$wants_driver" ] && ! command -v nvidia-smi >/dev/null 2>&1 && is_cloud; then
    if command -v apt-get >/dev/null 2>&1; then
        { install ubuntu-drivers-common && ubuntu-drivers install --gpgpu && install nvidia-cuda-toolkit; } ||
            note "the GPU driver cannot be installed"
    else
        note "the GPU driver is not in this image, and can be installed by us on Ubuntu only"
    fi
fi
mkdir -p "$folder"
printf '%s' "$problems" >"$folder/.booted" && mv "$folder/.booted" "$folder/booted"
