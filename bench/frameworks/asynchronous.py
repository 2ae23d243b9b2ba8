"""PyTorch with zmqps, asynchronously."""

import torch
from torch.utils.data import DataLoader

import zmqps.torch
from bench.frameworks.tasks import BATCH, Task, loss_of

worker = zmqps.connect()
task = Task()
model = task.model
loader = zmqps.torch.shard(DataLoader(task.data, batch_size=BATCH // worker.num_workers), worker)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
optimizer = zmqps.torch.Optimizer(model, worker, optimizer, mode="async", share_gradients=True)
for x, y in task.measured(loader):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
task.report(model, rank=worker.rank)
worker.finish()
