"""PyTorch alone."""

import torch
from torch.utils.data import DataLoader

from bench.frameworks.tasks import BATCH, Task, loss_of

task = Task()
model = task.model
loader = DataLoader(task.data, batch_size=BATCH)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for x, y in task.measured(loader):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
task.report(model, rank=0)
