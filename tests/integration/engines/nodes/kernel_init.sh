#!/bin/sh
# The first process of another kernel: all of this machine's files, which it may change without changing them, its own
# processes, groups of version 2 and a network of its own. It runs what it was told, and leaves. NB: $host has no spaces.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
host=$(dirname "$0")
if [ ! -e "$host/inside" ]; then
    mount -t proc proc /proc && mount -t tmpfs all /mnt && mkdir /mnt/upper /mnt/work /mnt/new &&
        insmod /usr/lib/uml/modules/*/kernel/fs/overlayfs/overlay.ko &&
        mount -t overlay all /mnt/new -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work &&
        mkdir -p /mnt/new/old && touch "/mnt/new$host/inside" && cd /mnt/new && pivot_root . old && exec chroot . "$0"
else
    mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t cgroup2 groups /sys/fs/cgroup &&
        mount -t devtmpfs dev /dev && mkdir -p /dev/pts /dev/shm && mount -t devpts -o ptmxmode=666 pts /dev/pts &&
        mount -t tmpfs -o mode=1777 shm /dev/shm && mount -t tmpfs run /run && mkdir /run/host /run/own &&
        mount -t hostfs host /run/host -o "$host" && mkdir -p /lib/modules &&
        mount --bind /usr/lib/uml/modules /lib/modules &&
        umount -l /old && rmdir /old && ip link set lo up && echo up >/run/host/up &&
        HOME=/run/own sh "$host/job" >/run/host/said 2>&1
    echo $? >/run/host/status
fi
echo o >/proc/sysrq-trigger
sleep 60
