#!/bin/sh
# OpenMPI starts every rank through this program. Machines meet on the loopback interface, whatever interface the
# command line rules out for real machines.
unset OMPI_MCA_btl_tcp_if_exclude
export OMPI_MCA_btl_tcp_if_include=lo
case ${NCCL_SOCKET_IFNAME-} in ^*) export NCCL_SOCKET_IFNAME=lo ;; esac
if [ -n "${TRAINYARD_ROOT-}" ]; then
    # Machines that share this computer's files: shared memory is named by host name and rank, and they have one name;
    # the folder of the machine that called mpirun is another one here.
    export OMPI_MCA_btl_vader_backing_directory="$TMPDIR"
    here=$(cd -P "$TRAINYARD_ROOT/run/trainyard/.." && pwd -P)
    case $(pwd -P)/ in
        "$here"/*) ;;
        "${here%/*}"/*/root/*)
            rest=$(pwd -P)/
            rest=${rest#"${here%/*}"/*/}
            cd "$here/$rest" 2>/dev/null || cd || exit 1
            ;;
    esac
fi
exec "$@"
