"""PyTorch: data-parallel training of a line on whatever processes a launcher has started. Processors only, gloo."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)  # each process has data of its own
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
wanted = torch.tensor([[3.0], [-2.0]])
for _ in range(25):
    x = torch.randn(64, 2)
    loss = torch.nn.functional.mse_loss(model(x), x @ wanted + 1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
own = torch.cat([value.detach().flatten() for value in model.parameters()])
everybody = [torch.zeros_like(own) for _ in range(size)]
dist.all_gather(everybody, own)
assert all(torch.equal(own, other) for other in everybody), "the processes disagree"
learned = [round(value, 1) for value in own.tolist()]
print(f"rank {rank} of {size}, local {os.environ['LOCAL_RANK']}: learned {learned}", flush=True)
dist.destroy_process_group()
