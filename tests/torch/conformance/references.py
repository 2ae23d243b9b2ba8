"""What is right: replicas in one process that exchange what DistributedDataParallel exchanges."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch

from tests.pace import allow
from tests.torch.conformance import optimizers
from tests.torch.conformance.loops import LOOPS, Batch, Loop, Run
from tests.torch.conformance.models import MODELS, Model
from tests.torch.conformance.schedules import SCHEDULES, STEPS

PATIENCE = allow(30.0)


class Exchange:
    """Lets threads hand one another values, in step."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._slots: list[Any] = [None] * ranks
        self._barrier = threading.Barrier(ranks)

    def gather(self, rank: int, value: Any) -> list[Any]:
        """Return what all have brought, by rank."""
        self._slots[rank] = value
        self._barrier.wait(PATIENCE)
        found = list(self._slots)
        self._barrier.wait(PATIENCE)
        return found

    def abort(self) -> None:
        """Let the others fail where they wait."""
        self._barrier.abort()


class Replica:
    """A model among its replicas.

    Parameters
    ----------
    exchange, rank
        With whom, and as which.
    module, optimizer
        Plain PyTorch's.
    by_step
        Exchange gradients in ``step``, after a script has clipped them, of those that step; else after the backward
        pass, of all, as DDP.
    stale
        Take the first replica's buffers once a step, not before each forward pass.
    undone
        Let ``step`` bring back the values of the one before, whatever was written since.
    """

    def __init__(
        self,
        exchange: Exchange,
        rank: int,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        by_step: bool = False,
        stale: bool = False,
        undone: bool = False,
    ) -> None:
        self.exchange, self.rank, self.module, self.optimizer = exchange, rank, module, optimizer
        self.by_step, self.stale, self._stepped = by_step, stale, True
        self._values = self._copies() if undone else None
        if by_step or stale or undone:
            self._step = optimizer.step
            # a method of the optimizer, as schedulers want it
            optimizer.step = MethodType(lambda _, closure=None: self.step(closure), optimizer)
            optimizer._step_supports_amp_scaling = True

    def _copies(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self._trained()]

    def _trained(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def broadcast_buffers(self) -> None:
        """Take the buffers of the first replica."""
        if self.stale and not self._stepped:
            return
        self._stepped = False
        mine = dict(self.module.named_buffers())
        theirs = self.exchange.gather(self.rank, {name: b.detach().clone() for name, b in mine.items()})[0]
        with torch.no_grad():
            for name, buffer in mine.items():
                if self.rank:
                    buffer.resize_(theirs[name].shape).copy_(theirs[name])

    def average(self, *, counts: bool = True) -> None:
        """Take the mean of all gradients that count; None is zero where another replica has one."""
        parameters = self._trained() if self.by_step else list(self.module.parameters())
        mine = [None if p.grad is None else p.grad.clone() for p in parameters] if counts else None
        found = [each for each in self.exchange.gather(self.rank, mine) if each is not None]
        for index, parameter in enumerate(parameters):
            gradients = [each[index] for each in found if each[index] is not None]
            if gradients:
                total = gradients[0].clone()
                for gradient in gradients[1:]:
                    total += gradient
                parameter.grad = total / len(found)

    def after_backward(self) -> None:
        """Do what DDP does."""
        if not self.by_step:
            self.average()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step with the mean of those whose gradients are finite."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        infinite = bool(getattr(self.optimizer, "found_inf", None) or 0)
        if (scale := getattr(self.optimizer, "grad_scale", None)) is not None:
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad = parameter.grad / scale
        if self.by_step:
            self.average(counts=not infinite)
        if self._values is not None:
            for parameter, value in zip(self._trained(), self._values, strict=True):
                parameter.data.copy_(value)
        if not all(self.exchange.gather(self.rank, infinite)):
            if hasattr(self.optimizer, "grad_scale"):
                self.optimizer.grad_scale = self.optimizer.found_inf = None  # which PyTorch's own step does not take
            self._step()
        if self._values is not None:
            self._values = self._copies()
        self._stepped = True
        return loss


class Result:
    """What a rank has at the end: parameters, buffers, and what its loop has seen."""

    def __init__(self, run: Run) -> None:
        self.parameters = {name: p.detach().clone() for name, p in run.module.named_parameters()}
        self.buffers = {name: b.detach().clone() for name, b in run.module.named_buffers()}
        self.seen = run.seen


def parts(batches: Sequence[Batch], rank: int, ranks: int) -> list[Batch]:
    """Return a rank's part of each batch."""
    size = len(batches[0][0]) // ranks
    return [(x[rank * size :][:size], y[rank * size :][:size]) for x, y in batches]


def prepared(model: Model, schedule: str, module: torch.nn.Module, optimizer: Any, rank: int, ranks: int) -> Run:
    """Return a run of a model: its batches, its schedule, and what is called in place of it."""
    for each in module.modules():
        if hasattr(each, "by_rank"):
            each.rank = rank
    call = model.call(module) if model.call else module
    mine = parts(model.batches(STEPS), rank, ranks)
    return Run(module, call, optimizer, SCHEDULES[schedule](optimizer), mine, rank, model.read)


def in_threads(work: Sequence[Callable[[], Any]], stop: Callable[[], None], patience: float = PATIENCE) -> list[Any]:
    """Return what each returns, or the first exception of any; ``stop`` ends the others then.

    Raises
    ------
    TimeoutError
        One has not returned in time. Its thread is left behind.
    """
    found: list[Any] = [None] * len(work)
    failed: list[BaseException] = []

    def run(index: int) -> None:
        try:
            found[index] = work[index]()
        except BaseException as error:
            failed.append(error)
            stop()

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience)
    if failed:
        raise failed[0]
    if any(thread.is_alive() for thread in threads):
        stop()
        raise TimeoutError("it hangs")
    return found


def ddp_like(
    model_name: str,
    rule: str,
    groups: str,
    schedule: str,
    loop_name: str,
    ranks: int,
    *,
    zeros: bool = False,
    **variant: bool,
) -> list[Result]:
    """Train replicas in one process, and return what each has.

    With one rank it is plain PyTorch. With ``zeros`` gradients are zeros where they would be None; other variants are
    those of `Replica`.
    """
    model, loop, exchange = MODELS[model_name], LOOPS[loop_name], Exchange(ranks)
    modules = [model.build() for _ in range(ranks)]

    def work(rank: int) -> Result:
        module = modules[rank]
        optimizer = optimizers.make(rule, groups, module)
        if zeros:
            _begin_with_zeros(optimizer)
        replica = Replica(exchange, rank, module, optimizer, **variant)
        run = prepared(model, schedule, module, optimizer, rank, ranks)
        if ranks > 1:
            run.before_forward, run.after_backward = replica.broadcast_buffers, replica.after_backward
        rightly(loop)(run)
        return Result(run)

    return in_threads([lambda rank=rank: work(rank) for rank in range(ranks)], exchange.abort)


def _begin_with_zeros(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
    forget = optimizer.zero_grad
    optimizer.zero_grad = lambda set_to_none=True: forget(set_to_none=False)


def rightly(loop: Loop) -> Callable[[Run], None]:
    """Return the loop that plain PyTorch runs."""
    return loop.reference or loop.run
