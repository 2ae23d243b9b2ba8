"""The loops of the suite: each way a script goes from a batch to a step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import utils

from tests.torch.conformance.schedules import STEPS, Schedule

Batch = tuple[torch.Tensor, torch.Tensor]
LARGEST = 0.05


@dataclass
class Run:
    """What a loop has: a model and its optimizer, as one rank of some."""

    module: torch.nn.Module
    call: Callable[..., Any]
    optimizer: Any
    schedule: Schedule
    batches: list[Batch]
    rank: int
    read: Callable[[torch.nn.Module], dict[str, torch.Tensor]] | None = None
    #: What an implementation does before a forward pass and after a backward one; DDP exchanges then.
    before_forward: Callable[[], None] = lambda: None
    after_backward: Callable[[], None] = lambda: None
    seen: dict[str, torch.Tensor] = field(default_factory=dict)

    def loss(self, batch: Batch) -> torch.Tensor:
        """Return the mean over the examples."""
        x, y = batch
        self.before_forward()
        return (self.call(x).reshape(len(y), -1) - y).square().mean()

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Compute gradients."""
        loss.backward(**options)
        self.after_backward()

    def stepped(self, number: int) -> None:
        """Do what comes after a step: the schedule's turn, and what the script reads."""
        self.schedule(number)
        if self.read is not None:
            self.see(number, self.read(self.module))

    def see(self, number: int, found: dict[str, torch.Tensor]) -> None:
        """Note what has been read, to be compared."""
        self.seen |= {f"{name} after step {number}": value for name, value in found.items()}


Forget = Callable[[Run], None]


def _gradients_none(run: Run) -> None:
    for parameter in run.module.parameters():
        parameter.grad = None


FORGET: dict[str, Forget] = {
    "optimizer": lambda run: run.optimizer.zero_grad(),
    "optimizer-zeros": lambda run: run.optimizer.zero_grad(set_to_none=False),
    "model": lambda run: run.module.zero_grad(),
    "model-zeros": lambda run: run.module.zero_grad(set_to_none=False),
    "by-hand": _gradients_none,
}


def plain(run: Run, forget: Forget = FORGET["optimizer"], clip: Callable[[Run], Any] = lambda run: None) -> None:
    """Train as everybody does."""
    for number, batch in enumerate(run.batches):
        forget(run)
        loss = run.loss(batch)
        run.backward(loss)
        clip(run)
        run.optimizer.step()
        run.stepped(number)


def _zeroing(name: str) -> Callable[[Run], None]:
    return lambda run: plain(run, FORGET[name])


def _forget_after(run: Run) -> None:
    """Zero the gradients behind the step, not before the forward pass."""
    for number, batch in enumerate(run.batches):
        loss = run.loss(batch)
        run.backward(loss)
        run.optimizer.step()
        run.optimizer.zero_grad()
        run.stepped(number)


def _clip_norm(run: Run) -> None:
    plain(run, clip=lambda run: utils.clip_grad_norm_(run.module.parameters(), LARGEST))


def _clip_value(run: Run) -> None:
    plain(run, clip=lambda run: utils.clip_grad_value_(run.module.parameters(), LARGEST / 10))


def _trained(run: Run) -> list[torch.nn.Parameter]:
    return [parameter for group in run.optimizer.param_groups for parameter in group["params"]]


def _clip_norm_of_trained(run: Run) -> None:
    plain(run, clip=lambda run: utils.clip_grad_norm_(_trained(run), LARGEST))


def _clip_value_of_trained(run: Run) -> None:
    plain(run, clip=lambda run: utils.clip_grad_value_(_trained(run), LARGEST / 10))


def _closure(run: Run) -> None:
    for number, batch in enumerate(run.batches):

        def closure(batch: Batch = batch) -> torch.Tensor:
            run.optimizer.zero_grad()
            loss = run.loss(batch)
            run.backward(loss)
            return loss

        run.optimizer.step(closure)
        run.stepped(number)


def _scaled(run: Run, infinite: Callable[[Run, int], bool], *, clip: bool = False) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    for number, batch in enumerate(run.batches):
        run.optimizer.zero_grad()
        loss = run.loss(batch)
        run.backward(scaler.scale(loss * float("inf") if infinite(run, number) else loss))
        if clip:
            scaler.unscale_(run.optimizer)
            utils.clip_grad_norm_(run.module.parameters(), LARGEST)
        scaler.step(run.optimizer)
        scaler.update()
        run.stepped(number)


def _accumulate(run: Run) -> None:
    for number, batch in enumerate(run.batches):
        loss = run.loss(batch) / 2
        run.backward(loss)
        if number % 2:
            run.optimizer.step()
            run.optimizer.zero_grad()
            run.stepped(number // 2)


def _two_losses(run: Run) -> None:
    """Call backward twice for a step, through one graph."""
    for number, batch in enumerate(run.batches):
        run.optimizer.zero_grad()
        loss = run.loss(batch)
        run.backward(loss, retain_graph=True)
        run.backward(loss * 0.5)
        run.optimizer.step()
        run.stepped(number)


def _skip_after(run: Run, forget: Forget = FORGET["model"]) -> None:
    """Leave a batch out once its gradients are there."""
    for number, batch in enumerate(run.batches):
        loss = run.loss(batch)
        run.backward(loss)
        if number % 5 != 2:
            run.optimizer.step()
            run.stepped(number)
        forget(run)


def _skip_before(run: Run) -> None:
    """Leave a batch out as soon as it is read."""
    for number, batch in enumerate(run.batches):
        if number % 5 == 2:
            continue
        run.optimizer.zero_grad()
        loss = run.loss(batch)
        run.backward(loss)
        run.optimizer.step()
        run.stepped(number)


def _skip_forward(run: Run) -> None:
    """Leave a batch out after its forward pass."""
    for number, batch in enumerate(run.batches):
        run.optimizer.zero_grad()
        loss = run.loss(batch)
        if number % 5 == 2:
            continue
        run.backward(loss)
        run.optimizer.step()
        run.stepped(number)


def _passes(run: Run) -> None:
    """Leave passes over the batches early."""
    count = itertools.count()
    for part in range(4):
        for index, batch in enumerate(itertools.islice(run.batches, part, None)):
            if index == 5:
                break
            run.optimizer.zero_grad()
            loss = run.loss(batch)
            run.backward(loss)
            run.optimizer.step()
            run.stepped(next(count))


def _evaluate(run: Run) -> None:
    """Evaluate between steps, once without gradients and once in inference mode; the outputs are compared."""
    for number, batch in enumerate(run.batches):
        run.optimizer.zero_grad()
        loss = run.loss(batch)
        run.backward(loss)
        run.optimizer.step()
        run.stepped(number)
        if number % 3 == 0:
            run.module.eval()
            with torch.no_grad() if number % 2 else torch.inference_mode():
                run.before_forward()
                run.see(number, {"output": run.call(run.batches[0][0]).clone()})
            run.module.train()


def _evaluate_after_backward(run: Run) -> None:
    """Evaluate between the backward pass and the step."""
    for number, batch in enumerate(run.batches):
        run.optimizer.zero_grad()
        loss = run.loss(batch)
        run.backward(loss)
        if number % 4 == 1:
            run.module.eval()
            with torch.no_grad():
                run.before_forward()
                run.see(number, {"output": run.call(run.batches[0][0]).clone()})
            run.module.train()
        run.optimizer.step()
        run.stepped(number)


def _nothing(run: Run) -> None:
    """Step sometimes with no gradient at all."""
    for number, batch in enumerate(run.batches):
        run.optimizer.zero_grad()
        loss = run.loss(batch)
        if number % 6 != 4:
            run.backward(loss)
        run.optimizer.step()
        run.stepped(number)


def _unfreeze(run: Run) -> None:
    """Freeze the last parameter at first, and the first one at last."""
    *_, last = (p for p in run.module.parameters() if p.requires_grad)
    first = next(p for p in run.module.parameters() if p.requires_grad)
    last.requires_grad_(False)
    for number, batch in enumerate(run.batches):
        if number == 8:
            last.requires_grad_(True)
        if number == 14 and first is not last:
            first.requires_grad_(False)
        run.optimizer.zero_grad()
        loss = run.loss(batch)
        if not loss.requires_grad:
            continue
        run.backward(loss)
        run.optimizer.step()
        run.stepped(number)


def _step_twice(run: Run) -> None:
    """Step with the same gradients once more."""
    for number, batch in enumerate(run.batches):
        run.optimizer.zero_grad()
        run.backward(run.loss(batch))
        run.optimizer.step()
        run.stepped(number)
        if number % 4 == 1:
            run.optimizer.step()


def _two_forwards(run: Run) -> None:
    """Pass forward twice, and backward once through both."""
    for number, (batch, other) in enumerate(zip(run.batches, reversed(run.batches), strict=True)):
        run.optimizer.zero_grad()
        run.backward(run.loss(batch) + run.loss(other))
        run.optimizer.step()
        run.stepped(number)


def _halved(run: Run) -> None:
    """Change the gradients by hand, once in place and once by others."""

    def halve(run: Run) -> None:
        for index, parameter in enumerate(run.module.parameters()):
            if parameter.grad is not None and index % 2:
                parameter.grad.mul_(0.5)
            elif parameter.grad is not None:
                parameter.grad = parameter.grad * 0.5

    plain(run, clip=halve)


def _writing(write: Callable[[Run], None]) -> Callable[[Run], None]:
    """Write to the weights after each step."""

    def loop(run: Run) -> None:
        for number, batch in enumerate(run.batches):
            run.optimizer.zero_grad()
            run.backward(run.loss(batch))
            run.optimizer.step()
            write(run)
            run.stepped(number)

    return loop


def _clamp(run: Run) -> None:
    for parameter in run.module.parameters():  # as the first Wasserstein GAN
        parameter.data.clamp_(-0.3, 0.3)


def _clamp_replaced(run: Run) -> None:
    for parameter in run.module.parameters():
        parameter.data = parameter.data.clamp(-0.3, 0.3)


def _from_vector(run: Run) -> None:
    vector = utils.parameters_to_vector(run.module.parameters())
    utils.vector_to_parameters(vector.clamp(-0.3, 0.3), run.module.parameters())


def _read_all(run: Run) -> None:
    """Read every parameter and the whole state after each step."""
    for number, batch in enumerate(run.batches):
        run.optimizer.zero_grad()
        loss = run.loss(batch)
        run.backward(loss)
        run.optimizer.step()
        run.stepped(number)
        found = {n: p.detach().clone() for n, p in run.module.named_parameters()}
        run.see(number, {**found, "norm": utils.get_total_norm(list(found.values()))})


@dataclass(frozen=True)
class Loop:
    """One value of the axis.

    Parameters
    ----------
    run
        The loop.
    reference
        That of plain PyTorch and DDP where it differs: what an option of zmqps does stands there in the loop.
    options
        Of `zmqps.torch.Optimizer`.
    with_overlap
        Those that are needed with ``overlap=True`` beside.
    documented
        What docs/torch.md says where several workers get another result than DDP; empty: they do not.
    words
        Of which an error that refuses it names one.
    writes
        Whether it writes to parameters: then a warning is enough, as docs/torch.md says.
    """

    run: Callable[[Run], None]
    reference: Callable[[Run], None] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    with_overlap: dict[str, Any] = field(default_factory=dict)
    documented: str = ""
    words: tuple[str, ...] = ()
    writes: bool = False


LOCAL = "clip_grad_norm_ before step() clips this worker's gradient"
ALONE = "the worker says that it skips the step, and the others go on without it"

LOOPS: dict[str, Loop] = {
    "plain": Loop(plain),
    "closure": Loop(_closure, words=("closure",)),
    "scaler": Loop(lambda run: _scaled(run, lambda run, number: False), words=("GradScaler",)),
    "scaler-inf": Loop(lambda run: _scaled(run, lambda run, number: number in (3, 4, 11)), words=("GradScaler",)),
    "scaler-inf-one": Loop(
        lambda run: _scaled(run, lambda run, number: number in (3, 11) and run.rank == 0),
        documented=ALONE, words=("GradScaler",),
    ),
    "scaler-clip": Loop(
        lambda run: _scaled(run, lambda run, number: number == 5, clip=True), documented=LOCAL, words=("GradScaler",)
    ),
    "accumulate": Loop(_accumulate, with_overlap={"accumulate": 2}, words=("accumulate",)),
    "two-losses": Loop(_two_losses, with_overlap={"accumulate": 2}, words=("accumulate",)),
    "clip-norm-by-hand": Loop(_clip_norm, documented=LOCAL, words=("clip",)),
    "clip-value-by-hand": Loop(_clip_value, documented=LOCAL, words=("clip",)),
    "clip-norm": Loop(plain, _clip_norm_of_trained, options={"clip_norm": LARGEST}, words=("clip_norm",)),
    "clip-value": Loop(plain, _clip_value_of_trained, options={"clip_value": LARGEST / 10}, words=("clip_value",)),
    **{f"zero-{name}": Loop(_zeroing(name), words=("zero_grad",)) for name in FORGET if name != "optimizer"},
    "zero-after": Loop(_forget_after, words=("zero_grad",)),
    "skip-after": Loop(_skip_after, words=("backward",)),
    "skip-before": Loop(_skip_before),
    "skip-forward": Loop(_skip_forward),
    "passes": Loop(_passes),
    "evaluate": Loop(_evaluate),
    "evaluate-late": Loop(_evaluate_after_backward),
    "no-gradient": Loop(_nothing, words=("gradient",)),
    "unfreeze": Loop(_unfreeze, words=("frozen",)),
    "step-twice": Loop(_step_twice, words=("gradient",)),
    "two-forwards": Loop(_two_forwards),
    "halved-by-hand": Loop(_halved, words=("gradient",)),
    "clamp": Loop(_writing(_clamp), words=("written",), writes=True),
    "clamp-replaced": Loop(_writing(_clamp_replaced), words=("written",), writes=True),
    "from-vector": Loop(_writing(_from_vector), words=("written",), writes=True),
    "read-all": Loop(_read_all),
}  # fmt: skip

assert STEPS % 4 == 0, "loops over parts of the steps end with a whole one"
