"""Horovod under PyTorch: data-parallel training of a line; the first process writes what was learned to the first argument."""

import socket
import sys
from pathlib import Path

import horovod.torch as hvd
import torch

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(2, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.2), named_parameters=model.named_parameters()
)
wanted = torch.tensor([[3.0], [-2.0]])
for _ in range(25):
    x = torch.randn(64, 2)
    loss = torch.nn.functional.mse_loss(model(x), x @ wanted + 1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
learned = [round(float(value), 1) for part in model.parameters() for value in part.detach().flatten()]
hosts = hvd.allgather_object(socket.gethostname())
print(f"rank {hvd.rank()} of {hvd.size()}, local {hvd.local_rank()}: learned {learned}", flush=True)
if hvd.rank() == 0:
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    Path(sys.argv[1], "checkpoint-1").write_text(f"{learned} on {sorted(set(hosts))}")
