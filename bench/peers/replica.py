"""A rank's copy of the model, as an all-reduce wants it."""

from __future__ import annotations

import os

import torch

from bench import models
from bench.peers.serve import GRADIENT_SCALE, LEARNING_RATE, Work

#: As DistributedDataParallel has it.
BUCKET_NBYTES = 25 << 20


class Replica:
    """Values, gradients and the fused optimizer.

    Parameters
    ----------
    work
        What is trained. Its variant says in what form: ``flat`` is one tensor, ``buckets`` the model's tensors, whose
        gradients lie in buckets of 25 MB.

    Attributes
    ----------
    buckets
        What is to be reduced.
    optimizer
        What then is to be stepped.
    """

    def __init__(self, work: Work) -> None:
        share_cores(work)
        size = models.num_elements(work.shapes)
        values, gradient = torch.ones(size), torch.full((size,), GRADIENT_SCALE)
        flat = work.variant == "flat"
        self.buckets = [gradient] if flat else list(gradient.split(BUCKET_NBYTES // 4))
        sizes = [size] if flat else [models.num_elements({name: shape}) for name, shape in work.shapes.items()]
        parameters = [torch.nn.Parameter(part) for part in values.split(sizes)]
        for parameter, part in zip(parameters, gradient.split(sizes), strict=True):
            parameter.grad = part
        optimizers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        self.optimizer = optimizers[work.optimizer](parameters, lr=LEARNING_RATE, fused=True)


def share_cores(work: Work) -> None:
    """Let the ranks divide the cores between them: with more threads than cores they wait for each other."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // work.workers))
