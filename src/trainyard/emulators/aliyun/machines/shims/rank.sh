#!/bin/sh
# OpenMPI starts every rank through this program. Machines meet on the loopback interface, whatever interface the
# command line rules out for real machines.
unset OMPI_MCA_btl_tcp_if_exclude
export OMPI_MCA_btl_tcp_if_include=lo
case ${NCCL_SOCKET_IFNAME-} in ^*) export NCCL_SOCKET_IFNAME=lo ;; esac
# Where machines share this computer's files, the folder of the machine that called mpirun is another one here.
case ${TRAINYARD_ROOT:+$PWD} in
    "" | "$TRAINYARD_ROOT"/*) ;;
    "${TRAINYARD_ROOT%-*}"-*/*)
        rest=${PWD#"${TRAINYARD_ROOT%-*}"-}
        cd "$TRAINYARD_ROOT/${rest#*/}" 2>/dev/null || cd || exit 1
        ;;
esac
exec "$@"
