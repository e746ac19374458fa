"""MindSpore on processors: the workers of a dynamic cluster add up what each has. Its scheduler runs this too."""

import os

import mindspore
import numpy as np
import work_done  # noqa: F401  # see there
from mindspore import Tensor, nn, ops
from mindspore.communication import get_group_size, get_rank, init, release


class Sum(nn.Cell):
    def __init__(self):
        super().__init__()
        self.reduce = ops.AllReduce()

    def construct(self, x):
        return self.reduce(x)


mindspore.set_device("CPU")
init("mccl")
rank, size = get_rank(), get_group_size()
total = Sum()(Tensor(np.array([rank + 1.0], dtype=np.float32)))
said = f"RANK_ID {os.environ['RANK_ID']}, device {os.environ['DEVICE_ID']}, table {bool(os.environ.get('RANK_TABLE_FILE'))}"
print(f"rank {rank} of {size}, {said}: {float(total.asnumpy()[0]):g}", flush=True)
release()
