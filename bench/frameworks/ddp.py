"""PyTorch with DistributedDataParallel."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from bench.frameworks.tasks import BATCH, Task, loss_of

dist.init_process_group("gloo")
task = Task()
model = DistributedDataParallel(task.model, gradient_as_bucket_view=True, static_graph=True)
sampler = DistributedSampler(task.data, shuffle=False)
loader = DataLoader(task.data, batch_size=BATCH // dist.get_world_size(), sampler=sampler)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for x, y in task.measured(loader):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
task.report(model.module, rank=dist.get_rank())
dist.destroy_process_group()
