"""An optimizer for a script's own loop, and a context for a loop that stays as it is."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from types import MethodType
from typing import Any

import torch
import torch.distributed

from zmqps import checks
from zmqps.errors import ConfigurationError
from zmqps.torch.model import outside_graphs
from zmqps.torch.trainer import Options, Trainer
from zmqps.worker import Worker

#: Options of `zmqps.Worker.init` that are passed on as they are.
OF_INIT = ("tables", "workers", "steps", "gradients", "push_codec", "pull_codec", "timeout")

log = logging.getLogger("zmqps")


class Optimizer(torch.optim.Optimizer):  # type: ignore[misc,unused-ignore]
    """A PyTorch optimizer whose updates zmqps' servers compute, for all workers of a job together.

    It *is* a ``torch.optim.Optimizer``: learning rate schedulers, ``GradScaler``, Lightning and others take it as any
    other. ``step`` pushes the gradients that ``backward`` has left, waits as the mode demands, and puts the values
    after that into the model. A parameter whose gradient is None is not updated, as in PyTorch.

    Parameters
    ----------
    model : torch.nn.Module
        Its values are the job's initial ones, if this worker is the first; else it gets those of the job.
    worker : Worker, optional
        From `zmqps.connect`. None in the other processes of a ``process_group``.
    optimizer : torch.optim.Optimizer
        Over the model's parameters; it says which equation, numbers and groups (`zmqps.torch.spec_of`), and is not
        stepped itself. Parameters in none of its groups are frozen.
    mode : {"sync", "async", "bounded"}
        As for `zmqps.Worker.init`: ``sync`` trains as one large batch.
    staleness : int, optional
        As for `zmqps.Worker.init`: of the bounded mode.
    clip_norm, clip_value : float, optional
        As for each optimizer of `zmqps.optim`. Synchronous: ``clip_norm`` limits the norm of the mean over all workers,
        where ``torch.nn.utils.clip_grad_norm_`` before ``step`` limits that of this worker's gradient.
    count : {"pushes", "steps"}
        As for each optimizer of `zmqps.optim`.
    buffers : {"average", "chief", "own"}, optional
        What becomes of buffers that the forward pass has changed, such as the statistics of BatchNorm: all get their
        mean (synchronous, by default; whole numbers come from the chief), those of the chief (as with DDP), or each
        keeps its own. Not synchronous: the chief's are the job's, which observers and checkpoints have, and each trains
        with its own.
    share_gradients : bool
        Put ``p.grad`` where servers on this host read it (`zmqps.Worker.gradient_buffers`). `zero_grad` then writes
        zeros, so a parameter that is not used has a gradient of zeros, not None.
    overlap : bool
        Push while ``backward`` still runs, and return from `step` before the new values have come: what reads a
        parameter or a buffer waits for it. The result is the same to the bit where the mode is synchronous. Exact
        only if nothing changes ``p.grad`` between ``backward`` and ``step``, which is checked. What PyTorch does not
        see is not waited for: a numpy array or another view that was taken of a parameter before the step,
        ``torch.tensor(p)``; call `synchronize` before these.
    accumulate : int
        With ``overlap``: how many backward passes make a step.
    process_group : torch.distributed.ProcessGroup, optional
        Processes of this host that have averaged their gradients (by ``DistributedDataParallel``, for instance): the
        first one of them has the worker, the others get the values from it.
    **init
        As for `zmqps.Worker.init`: ``workers``, ``steps``, ``gradients``, ``push_codec``, ``pull_codec``, and
        ``tables`` besides those of the model's layers. Synchronous, the mean is over all workers unless you pass
        ``steps=zmqps.Steps(mean="pushed")``. ``timeout`` is that of each wait.

    Raises
    ------
    OptimizerError
        The servers have no such optimizer; says which there are.
    ConfigurationError
        Options do not go together; or the worker's job trains another model already, which needs another job:
        ``zmqps.connect(job=...)``.
    PSError
        As `zmqps.Worker.init`.
    """

    #: `torch.amp.GradScaler` then hands over whether gradients are finite, and calls `step` in any case: a worker that
    #: says nothing would keep the others waiting.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        model: torch.nn.Module,
        worker: Worker | None,
        optimizer: torch.optim.Optimizer,
        *,
        mode: str = "sync",
        staleness: int | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        count: str = "pushes",
        buffers: str | None = None,
        share_gradients: bool = False,
        overlap: bool = False,
        accumulate: int = 1,
        process_group: torch.distributed.ProcessGroup | None = None,
        **init: Any,
    ) -> None:
        if isinstance(optimizer, Optimizer):
            raise ConfigurationError("this optimizer is zmqps' already: pass the one of torch.optim")
        if wrong := [name for name in init if name not in OF_INIT]:
            raise ConfigurationError(f"Optimizer() {checks.no_option(wrong[0], [*_own_options(), *OF_INIT])}")
        options = Options(
            mode=mode, staleness=staleness, clip_norm=clip_norm, clip_value=clip_value, count=count, buffers=buffers,
            share_gradients=share_gradients, overlap=overlap, accumulate=accumulate, process_group=process_group,
            timeout=init.pop("timeout", None), init=init,
        )  # fmt: skip
        self._trainer: Trainer | None = Trainer(model, worker, optimizer, options)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._optimizer_step_pre_hooks.update(optimizer._optimizer_step_pre_hooks)
        self._optimizer_step_post_hooks.update(optimizer._optimizer_step_post_hooks)
        self.state = _Moments(dict)
        optimizer.step = MethodType(_refuse_to_step, optimizer)  # until `close`
        self._begun = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Have the groups of a state; a copy of an optimizer has no worker."""
        super().__setstate__(state)
        self.__dict__.setdefault("_trainer", None)
        self.state = _Moments(dict)

    @property
    def trainer(self) -> Trainer:
        """What has the worker.

        Raises
        ------
        ConfigurationError
            This optimizer is a copy.
        """
        if self._trainer is None:
            raise ConfigurationError(
                "this is a copy of an optimizer, and has no worker: make one of the copied model by "
                "zmqps.torch.Optimizer, with another job"
            )
        return self._trainer

    @property
    def version(self) -> int:
        """The version of the values in the model, as ``zmqps.Params.version``; with ``overlap`` after `synchronize`."""
        return self.trainer.version

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Push the gradients, and write the updated values into the model.

        Parameters
        ----------
        closure : callable, optional
            Computes the gradients, and returns the loss.

        Returns
        -------
        object
            The closure's result.

        Raises
        ------
        PSError
            As `zmqps.Worker.push` and `zmqps.Worker.pull`.
        """
        return stepped(self, self.trainer, closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, of tables as well; with ``share_gradients`` they become zeros in place."""
        super().zero_grad(set_to_none and not self.trainer.options.share_gradients)

    def set_values(self) -> None:
        """Replace the servers' parameters and buffers by the model's.

        Call it after a script has written to them, for instance to clip a critic's weights. In the synchronous and the
        bounded mode it is a separate step, in which nothing is trained: each worker calls this, and the values of the
        first one count. Moments and step counts do not change.

        Raises
        ------
        PSError
            As `zmqps.Worker.set` and `zmqps.Worker.pull`.
        """
        with torch.no_grad():
            self.trainer.set_values()

    def synchronize(self) -> None:
        """Return when all values of the last step are in the model; without ``overlap`` they always are."""
        self.trainer.wait()

    def close(self) -> None:
        """Detach from the model and the worker's job, which may then train another model; the worker stays open."""
        self.trainer.close()
        self.trainer.twin.__dict__.pop("step", None)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add the groups of the wrapped optimizer; later ones are refused.

        Raises
        ------
        ConfigurationError
            The job has begun: its parameters are fixed.
        """
        if self.__dict__.get("_begun", False):
            raise ConfigurationError(
                "the job has begun with the param groups there were: name all in the optimizer, those to be "
                "trained later with lr=0"
            )
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the groups in PyTorch's format, and the job's version, without the moments.

        `full_state_dict` includes the moments. This state belongs to a `zmqps.Worker.checkpoint` made now.
        """
        state: dict[str, Any] = super().state_dict()
        if self._trainer is not None:  # else this is a copy
            self.synchronize()
            state["version"] = self.version
        return state

    def full_state_dict(self) -> dict[str, Any]:
        """Return the argument of the PyTorch optimizer's ``load_state_dict``, with the servers' moments.

        They come from a checkpoint that is made for it, so the cluster needs a place for checkpoints (``--checkpoint``)
        which this process can read.

        Raises
        ------
        ConfigurationError, CheckpointError
            There is no such place; or as `zmqps.Worker.checkpoint`.
        """
        return self.trainer.full_state(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load learning rates of the groups; moments cannot be loaded into a job that has begun.

        A cluster that was started with ``--restore`` has them. `zmqps.checkpoint.from_torch` writes PyTorch's moments
        into a checkpoint, from which a cluster restores.

        Raises
        ------
        ConfigurationError
            The state is of a later version than the job, which therefore lacks its moments and perhaps its values.
        """
        if self._trainer is not None:
            self._trainer.check_state(state_dict)
        super().load_state_dict({**state_dict, "state": {}})
        if self._trainer is not None:
            self._trainer.take_groups(self.param_groups)


def _own_options() -> list[str]:
    return [name for name, option in signature(Optimizer).parameters.items() if option.kind is option.KEYWORD_ONLY]


def _refuse_to_step(optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> None:
    raise ConfigurationError(
        f"the servers do the steps of this {type(optimizer).__name__}: call step() of the zmqps.torch.Optimizer that "
        "was made from it, or close() that"
    )


class _Moments(defaultdict[Any, Any]):
    """The state of an optimizer whose moments are on the servers: none."""

    def clear(self) -> None:
        """Refuse to forget what is not here."""
        raise ConfigurationError(
            "the moments are on the servers, and stay there: for a fresh start train another job, "
            'zmqps.connect(job="again")'
        )


@outside_graphs  # type: ignore[untyped-decorator,unused-ignore]
def stepped(optimizer: torch.optim.Optimizer, trainer: Trainer, closure: Callable[[], Any] | None) -> Any:
    """Do a step on behalf of an optimizer, whose groups and whose scaler's findings count."""
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    scale, found = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
    with torch.no_grad():
        skip, unscaled = found is not None and bool(found), found is not None and scale is None
        trainer.step(optimizer.param_groups, scale=scale, unscaled=unscaled, skip=skip)
    return loss


@contextmanager
def training(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, worker: Worker | None, **options: Any
) -> Iterator[torch.optim.Optimizer]:
    """Let servers compute the steps of an optimizer within a context, without changes of the loop.

    Parameters
    ----------
    model, optimizer, worker, **options
        As for `Optimizer`. The optimizer keeps its class; its ``step`` pushes and pulls. It has no moments, neither in
        the context nor after it: these are on the servers.

    Examples
    --------
    >>> with zmqps.torch.training(model, optimizer, worker):  # doctest: +SKIP
    ...     train(model, optimizer)
    """
    if options.get("share_gradients"):
        raise ConfigurationError("share_gradients=True needs zmqps.torch.Optimizer, whose zero_grad keeps the memory")
    names = ("step", "_step_supports_amp_scaling", "load_state_dict")
    before = {name: optimizer.__dict__[name] for name in names if name in optimizer.__dict__}
    trainer = Optimizer(model, worker, optimizer, **options).trainer

    def step(self: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        self._opt_called = True  # as a scheduler's own wrapper says it, which this takes the place of
        return stepped(self, trainer, closure)

    hooked = torch.optim.Optimizer.profile_hook_step(step)  # which calls the hooks of the optimizer
    if hasattr(before.get("step"), "_wrapped_by_lr_sched"):
        hooked._wrapped_by_lr_sched = True
    optimizer.step = MethodType(hooked, optimizer)
    optimizer._step_supports_amp_scaling = True
    load = optimizer.load_state_dict

    def load_state_dict(state_dict: Mapping[str, Any]) -> None:
        trainer.check_state(state_dict)
        load({**state_dict, "state": {}})

    optimizer.load_state_dict = load_state_dict
    try:
        yield optimizer
    finally:
        for name in names:
            optimizer.__dict__.pop(name, None)
        optimizer.__dict__.update(before)
        trainer.close()
