# The data disk of a machine: found by its size, formatted if there is nothing on it, mounted now and at every boot.
# Defines mount_data; expects `note`, wants_data (GiB), is_snapshot (yes or empty), data (the folder) and fstab (the file).

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

# Whether nothing at all is on a disk: no file system, no table of partitions, nothing that is unclear. What others have
# noted about it may be older than the disk, so it is read itself.
is_blank() {
    blkid -p "$1" >/dev/null 2>&1
    [ $? = 2 ]
}

has_files() { [ "$(blkid -p -s USAGE -o value "$1" 2>/dev/null)" = filesystem ]; }

# Sets part: where the files are, on the disk itself or on its first partition that has some.
find_part() {
    part=''
    if has_files "$1"; then
        part=$1
        return 0
    fi
    for name in $(lsblk -nr -o NAME,TYPE "$1" | awk '$2 == "part" { print $1 }'); do
        if has_files "/dev/$name"; then
            part=/dev/$name
            return 0
        fi
    done
    return 1
}

mount_data() {
    mkdir -p "$data"
    ! mountpoint -q "$data" || return 0
    disk=$(find_disk) || { note "the data disk did not appear" && return 0; }
    if ! find_part "$disk"; then
        # What was made from a snapshot has somebody's files on it, whether we can read them or not.
        if [ -n "$is_snapshot" ]; then
            note "$disk has no file system that can be read, so what the snapshot holds was left as it is" && return 0
        elif ! is_blank "$disk"; then
            note "$disk is not empty but has no file system that can be read, so it was left as it is" && return 0
        fi
        mkfs.ext4 -q -m 0 "$disk" || { note "$disk cannot be formatted" && return 0; }
        part=$disk
    fi
    id=$(blkid -p -s UUID -o value "$part")
    # An image of a machine of ours brings the line of another disk.
    [ ! -e "$fstab" ] || sed -i "\\|^UUID=[^ ]* $data auto defaults,nofail 0 2\$|d" "$fstab"
    echo "UUID=$id $data auto defaults,nofail 0 2" >>"$fstab"
    mount "$part" "$data" || note "$part cannot be mounted on $data"
}
