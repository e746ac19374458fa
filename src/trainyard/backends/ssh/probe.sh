# What this host is, as key=value lines. POSIX sh; runs under dash, bash and busybox. Changes nothing.
# With `quick` only what a machine is described by: the rest is for people who check a host.
# A key may come several times (gpu, npu, address, tool); one that cannot be found out does not come at all.

LC_ALL=C
PATH=$PATH:/usr/local/bin:/usr/local/sbin:/usr/sbin:/sbin # where npu-smi, ip and getconf may be
export LC_ALL PATH

say() { [ -n "$2" ] && printf '%s=%s\n' "$1" "$2"; }
have() { command -v "$1" >/dev/null 2>&1; }
number() { case $1 in '' | *[!0-9]*) return 1 ;; esac; }
# A driver that hangs must not hang us.
patiently() { if have timeout; then timeout 20 "$@"; else "$@"; fi; }

quick=${1:-}
[ "$quick" ] || say clock "$(date +%s.%N)"
say home_hex "$(printf '%s' "$HOME" | od -An -v -tx1 | tr -d ' \n')" # a path may hold anything
say user "$(id -un 2>/dev/null || id -u)"
say uid "$(id -u)"
say kernel "$(uname -sr)"
say arch "$(uname -m)"
say os "$(sed -n 's/^PRETTY_NAME=//p' /etc/os-release 2>/dev/null | tr -d '"')"

cores=$(nproc 2>/dev/null) || cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null)
say cores "$cores"

kib=$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null)
for file in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do # a container's limit
    limit=$(cat "$file" 2>/dev/null)
    # "No limit" is the word max, or a number with more digits than any real memory has.
    number "$limit" && [ ${#limit} -lt 17 ] && number "$kib" && [ $((limit / 1024)) -lt "$kib" ] && kib=$((limit / 1024))
done
number "$kib" && say memory_mib $((kib / 1024))

if have nvidia-smi; then
    if listed=$(patiently nvidia-smi --query-gpu=index,name,memory.total --format=csv,noheader 2>&1); then
        printf '%s\n' "$listed" | sed -n 's/^ *\([0-9][0-9]*,.*\)/gpu=\1/p'
    else
        say gpu_error "$(printf '%s\n' "$listed" | sed -n '1p')"
    fi
fi
if have npu-smi; then
    # NPU ID, chip ID, chip logic ID, chip name; the management chip (Mcu) has no logic ID.
    if listed=$(patiently npu-smi info -m 2>&1); then
        printf '%s\n' "$listed" | sed -n 's/^[ 	]*[0-9][0-9]*[ 	][ 	]*[0-9][0-9]*[ 	][ 	]*\([0-9][0-9]*\)[ 	][ 	]*\(.*\)$/npu=\1, \2/p'
    else
        say npu_error "$(printf '%s\n' "$listed" | sed -n '1p')"
    fi
fi

# The address that the connection came in by is the host's own, on this side of any translation.
# shellcheck disable=SC2086  # words are wanted
set -- ${SSH_CONNECTION:-}
say reached "${3:-}"
say address "$(ip -4 route get 192.0.2.1 2>/dev/null | sed -n 's/.* src \([0-9.]*\).*/\1/p')" # the default route's
for address in $(hostname -I 2>/dev/null || hostname -i 2>/dev/null); do
    say address "$address"
done

[ "$quick" ] && exit 0

[ -r /proc/self/stat ] && say proc yes
[ -w "$HOME" ] && say home_writable yes

# The columns before and after may hold spaces; "available capacity%" is found by its percent sign.
kib=$(df -Pk "$HOME" 2>/dev/null | sed -n '2,$s/.* \([0-9][0-9]*\)  *[0-9][0-9]*% .*/\1/p')
number "$kib" && say disk_free_mib $((kib / 1024))

for tool in tmux bash rsync tar find sha256sum python3 ssh setsid grep; do
    have "$tool" && say tool "$tool"
done
for packages in apt-get dnf yum apk zypper pacman; do
    have "$packages" && say packages "$packages" && break
done
have tmux && say tmux_version "$(tmux -V 2>/dev/null)"
have bash && say bash_version "$(bash -c 'echo "$BASH_VERSION"' 2>/dev/null)"
say shell "${SHELL:-}"
say clock_end "$(date +%s.%N)"
exit 0
