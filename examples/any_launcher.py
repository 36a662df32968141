"""One script for torchrun, mpirun and srun: dovetail.environment() tells torch who started it.

Run: torchrun --standalone --nproc-per-node 2 examples/any_launcher.py
Open MPI: mpirun -n 2 python examples/any_launcher.py  (several machines: also -x MASTER_ADDR=HOST-OF-RANK-0)
MPICH, Intel MPI: mpiexec -n 2 python examples/any_launcher.py  (several machines: also -genv MASTER_ADDR HOST)
Slurm: srun -n 2 python examples/any_launcher.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

import dovetail

STEPS = 60


def main() -> None:
    launch = dovetail.environment()
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
    optimizer = dovetail.distribute(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    source = torch.Generator().manual_seed(launch.rank)  # every rank has its own data
    for _ in range(STEPS):
        points = torch.randn(64, 16, generator=source)
        loss = nn.functional.mse_loss(model(points), points.square().sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if launch.rank == 0:
        print(f"started by {launch.launcher}, {launch.world} ranks, loss {loss.item():.2f}")
        print(dovetail.stats(), flush=True)
    dovetail.shutdown(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
