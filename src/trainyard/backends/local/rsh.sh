#!/bin/sh
# A remote shell between machines that are folders of one computer, so that a plain `mpirun --host a:8,b:8` reaches
# the other machine without sshd. Installed in every machine's bin/ under three names:
#   ssh, trainyard-rsh   `ssh [options] [user@]machine [command]`: the command runs with the home, the environment and
#                        the mark of that machine, named by address or by name; any other host goes to the real ssh
#   trainyard-rank       OpenMPI starts every rank through it (orte_fork_agent): `trainyard-rank program arguments`
case $0 in */*) bin=${0%/*} ;; *) bin=$(command -v -- "$0") && bin=${bin%/*} ;; esac
root=${bin%/*/bin} # <root>/<machine>/bin: the folder of all machines
self=${TRAINYARD_MACHINE-}
self=${self%%:*}

# Sets `text` to $1 with the home of every machine turned into that of machine $2. On separate machines a path such
# as /root/data means one's own; here the same path leads into the folder of whoever started the program.
translate() {
    text='' rest=$1
    while :; do
        case $rest in *"$root"/*/home*) ;; *) break ;; esac
        text=$text${rest%%"$root"/*}$root/
        rest=${rest#*"$root"/}
        case ${rest#*/} in home | home/* | home[!A-Za-z0-9._-]*) ;; *) continue ;; esac
        case $rest in */*) [ -f "$root/${rest%%/*}/machine.json" ] && text=$text$2 rest=/${rest#*/} ;; esac
    done
    text=$text$rest
}

run_rank() {
    # OpenMPI keeps the folder in which mpirun was called: on this machine it is the same one below its own home.
    translate "$PWD" "$self"
    [ "$text" = "$PWD" ] || cd "$text" 2>/dev/null || cd || exit 1
    translate "$PATH" "$self" && PATH=$text
    [ -z "${PYTHONPATH-}" ] || { translate "$PYTHONPATH" "$self" && PYTHONPATH=$text; }
    [ -z "${LD_LIBRARY_PATH-}" ] || { translate "$LD_LIBRARY_PATH" "$self" && LD_LIBRARY_PATH=$text; }
    # Machines meet on the loopback interface, whatever interface the command line rules out for real machines.
    unset OMPI_MCA_btl_tcp_if_exclude
    export OMPI_MCA_btl_tcp_if_include=lo
    case ${NCCL_SOCKET_IFNAME-} in ^*) export NCCL_SOCKET_IFNAME=lo ;; esac
    # Shared memory is named by host name and rank on the host; all machines here have one host name.
    export OMPI_MCA_btl_vader_backing_directory="${TMPDIR:-/tmp}"
    for word do
        shift
        translate "$word" "$self"
        set -- "$@" "$text"
    done
    exec "$@"
}

fail() {
    echo "ssh: $*" >&2
    exit 255
}

# The real ssh is the next one on PATH that is not this file.
run_real_ssh() {
    path=$PATH:
    while [ -n "$path" ]; do
        folder=${path%%:*} path=${path#*:}
        case $folder in "$root"/*/bin) continue ;; esac
        [ ! -f "$folder/ssh" ] || [ ! -x "$folder/ssh" ] || exec "$folder/ssh" "$@"
    done
    fail "$host is no machine of this computer, and there is no other ssh on PATH"
}

# Sets `machine` to the folder of $host; fails where it is none of ours.
find_machine() {
    case $host in
        '' | .* | -* | */*) return 1 ;;
        *) [ ! -f "$root/$host/machine.json" ] || { machine=$root/$host && return; } ;;
    esac
    case $host in *[!0-9.]*) return 1 ;; esac
    machine=$(grep -lF "\"address\": \"$host\"" "$root"/*/machine.json 2>/dev/null)
    machine=${machine%/machine.json}
    [ -f "$machine/machine.json" ]
}

# Sets `keeper`: the process that has the machine's environment for as long as the machine runs.
find_keeper() {
    keeper='' started='' boot='' stat=''
    { read -r keeper started boot <"$machine/keeper"; } 2>/dev/null || return 1
    read -r now </proc/sys/kernel/random/boot_id && [ "$now" = "$boot" ] || return 1
    { while IFS= read -r line || [ -n "$line" ]; do stat=$stat$line; done <"/proc/$keeper/stat"; } 2>/dev/null
    # shellcheck disable=SC2086  # a list of numbers
    set -- ${stat##*)}
    [ "${20-}" = "$started" ]
}

# Every argument as a word for eval. Called through `xargs -0`, which takes an environment apart.
quote_words() {
    for word do
        printf " '"
        while :; do
            case $word in *\'*) ;; *) break ;; esac
            printf "%s'\\\\''" "${word%%\'*}"
            word=${word#*\'}
        done
        printf "%s'" "$word"
    done
    exit
}

case ${0##*/} in trainyard-rank) run_rank "$@" ;; esac
case ${1-} in --quote-words) shift && quote_words "$@" ;; esac

# ssh's own options: those with a value in the same or the next word, and flags that may stand together. They may
# come before and after the host.
count=1 host='' no_input='' background=''
while [ "$count" -le $# ]; do
    eval "word=\${$count}"
    case $word in
        --) [ -z "$host" ] || break ;;
        -W*) fail "machines of one computer need no forwarding: connect to the address" ;;
        -[BbcDEeFIiJLlmOoPpQRSw]) count=$((count + 1)) ;;
        -[BbcDEeFIiJLlmOoPpQRSw]*) ;;
        -*)
            case $word in *n*) no_input=yes ;; esac
            case $word in *f*) no_input=yes background=yes ;; esac
            ;;
        *)
            [ -z "$host" ] || break
            host=${word#ssh://}
            host=${host#*@}
            case $host in \[*\]*) host=${host#\[} && host=${host%%\]*} ;; esac
            find_machine || run_real_ssh "$@"
            ;;
    esac
    count=$((count + 1))
done
[ -n "$host" ] || run_real_ssh "$@"
name=${machine##*/}
find_keeper || fail "connect to host $host: the machine $name does not run"
shift $((count - 1))
translate "$*" "$name"
command=$text

if [ "$name" = "$self" ]; then
    # OpenMPI starts ranks on its own machine itself, with what the session has exported: so here.
    words=''
else
    words=$(xargs -0 sh "$bin/trainyard-rsh" --quote-words <"/proc/$keeper/environ") && [ -n "$words" ] ||
        fail "the environment of $name cannot be read"
    words="env -i $words"
    [ -z "${TERM-}" ] || words="$words \"TERM=\$TERM\""
fi
cd "$machine/home" || fail "the machine $name has no home"
[ -z "$no_input" ] || exec </dev/null
# shellcheck disable=SC2016  # expanded by the inner shell
if [ -n "$command" ]; then
    set -- 'exec "${SHELL:-/bin/sh}" -c "$1"' sh "$command"
else
    set -- 'exec "${SHELL:-/bin/sh}" -l' sh
fi
if [ -n "$background" ]; then
    eval "$words sh -c \"\$@\"" &
    exit 0
fi
eval "exec $words sh -c \"\$@\""
