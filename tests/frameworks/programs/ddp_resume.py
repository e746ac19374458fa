"""PyTorch: a data-parallel training that saves every step and begins where it was. usage: ddp_resume.py FOLDER STEPS

What it ends with depends on the steps alone, so a run that was disturbed ends with the same as one that was not.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
first = 0
if (folder / "checkpoint.pt").exists():
    saved = torch.load(folder / "checkpoint.pt")
    first = saved["step"]
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
(folder / f"pid.{rank}").write_text(str(os.getpid()))
print(f"rank {rank} of {size} begins at step {first}", flush=True)
dist.barrier()
for step in range(first, steps):
    torch.manual_seed(step * size + rank)  # the data of this process in this step
    x = torch.randn(16, 4)
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        state = {"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, folder / "new.pt")
        (folder / "new.pt").rename(folder / "checkpoint.pt")
        (folder / "step").write_text(str(step + 1))
    time.sleep(0.05)
dist.barrier()
if rank == 0:
    weights = torch.cat([value.detach().flatten() for value in model.parameters()])
    (folder / "weights").write_text(" ".join(f"{value:.9g}" for value in weights.tolist()))
dist.destroy_process_group()
