"""A real MPI program without a compiler or a package: adds the ranks up with MPI_Allreduce and says where it runs."""

import ctypes
import os
import sys

library = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)


def handle(name):
    return ctypes.byref(ctypes.c_char.in_dll(library, name))


library.MPI_Init(None, None)
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
mine, total = (ctypes.c_int * 1)(rank + 1), (ctypes.c_int * 1)()
status = library.MPI_Allreduce(
    mine, total, 1, handle("ompi_mpi_int"), handle("ompi_mpi_op_sum"), handle("ompi_mpi_comm_world")
)
place = os.environ.get("TRAINYARD_MACHINE", "").partition(":")[0] or os.uname().nodename
sys.stdout.write(f"rank={rank} sum={total[0]} on={place} cwd={os.getcwd()} home={os.environ['HOME']}\n")
sys.stdout.flush()
library.MPI_Finalize()
sys.exit(status)
