"""What a step of an optimizer is when servers compute it: gradients out, values in."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
import torch.distributed

from zmqps import checks
from zmqps.checkpoint import open_checkpoint
from zmqps.checkpoint.torch_state import torch_state
from zmqps.client.frameworks import claim, over_workers, release
from zmqps.errors import ConfigurationError, PSError
from zmqps.torch.embedding import Tables, tables
from zmqps.torch.model import BUFFERS, Buffers, is_plain, parameters_of
from zmqps.torch.overlap import Overlap
from zmqps.torch.rows import is_rows
from zmqps.torch.translate import Followed, spec_of
from zmqps.torch.watch import Changed, Watch
from zmqps.worker import Worker


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `zmqps.torch.Optimizer`, which describes them; ``init`` are those of `zmqps.Worker.init`."""

    mode: str
    staleness: int | None
    clip_norm: float | None
    clip_value: float | None
    count: str
    buffers: str | None
    share_gradients: bool
    overlap: bool
    accumulate: int
    process_group: Any
    timeout: float | None
    init: Mapping[str, Any]

    @property
    def sync(self) -> bool:
        """Whether workers train as one large batch."""
        return self.mode == "sync"

    @property
    def buffers_by(self) -> str:
        """What is done with buffers."""
        return self.buffers or ("average" if self.sync else "chief")

    def check(self, *, has_worker: bool) -> None:
        """Raise `ConfigurationError` where options do not go together."""
        checks.one_of("buffers", self.buffers_by, BUFFERS)
        checks.whole("accumulate", self.accumulate, 1)
        if self.buffers_by == "average" and not self.sync:
            raise ConfigurationError(
                "buffers are averaged in a synchronous step: pass mode=\"sync\", or buffers='chief'"
            )
        if not has_worker and self.process_group is None:
            raise ConfigurationError("worker=None is for processes of a process_group whose first one has the worker")
        if self.accumulate > 1 and not self.overlap:
            raise ConfigurationError(
                "accumulate= is for overlap=True; without it, call step() after as many backward passes as you like"
            )
        if self.overlap and self.clip_norm is not None and not self.sync:
            raise ConfigurationError('overlap=True pushes before the norm is known: clip_norm needs mode="sync"')


log = logging.getLogger("zmqps")

#: The last one of each model, whose hooks are taken off before another's are put on.
_TRAINERS: WeakKeyDictionary[torch.nn.Module, ref[Trainer]] = WeakKeyDictionary()
#: Those that have trained a model.
_WORKERS: WeakSet[Worker] = WeakSet()


class Trainer:
    """The worker behind an optimizer.

    Parameters
    ----------
    model, worker, optimizer
        As for `zmqps.torch.Optimizer`. Hyper-parameters are read from the optimizer's groups at each step.
    options
        Likewise.

    Attributes
    ----------
    version
        Of the values in the model.
    twin
        The optimizer that this was made from.
    """

    def __init__(
        self, model: torch.nn.Module, worker: Worker | None, optimizer: torch.optim.Optimizer, options: Options
    ) -> None:
        options.check(has_worker=worker is not None)
        self.model = model
        self.options = options
        self.version = 0
        self._worker = worker
        self.twin = optimizer
        owned = {id(tensor) for each in optimizer.param_groups for tensor in each["params"]}
        self._trained = [(n, p) for n, p in model.named_parameters() if id(p) in owned and not is_rows(p)]
        self.tables = Tables(model, owned)
        self._buffers = Buffers(model, options.buffers_by, come_back=options.sync)
        self._numbers: Followed | None = None
        self._overlap: Overlap | None = None
        self._watch = Watch(self._trained)
        self._changed: Changed | None = None
        if self.tables and options.process_group is not None:
            raise ConfigurationError("embeddings with tables need a worker in each process: leave out process_group")
        if worker is not None:
            try:
                self._begin(worker)
            except BaseException:
                self._let_go()
                raise
        self._spread()
        if options.process_group is None:  # else DDP is yet to wrap the model, and writes the same values to it
            self._watch.note_all()

    def _begin(self, worker: Worker) -> None:
        """Begin or join the job, and take its values."""
        options, values = self.options, parameters_of(self.model)
        former = _TRAINERS.get(self.model)
        if former is not None and (trainer := former()) is not None:
            with suppress(PSError):  # of a worker that is closed by now, perhaps
                trainer.close()  # Lightning makes an optimizer for each fit
        claim(worker, self.model)
        _TRAINERS[self.model] = ref(self)
        more: dict[str, Any] = dict(options.init)
        if self.tables:
            more["tables"] = {**(more.get("tables") or {}), **tables(self.model, worker, deferred=True)}
        worker.init(
            values,
            optimizer=spec_of(
                self.twin,
                self.model.named_parameters(),
                clip_norm=options.clip_norm,
                clip_value=options.clip_value,
                count=options.count,
            ),
            buffers=self._buffers.copies,
            staleness=options.staleness,
            timeout=options.timeout,
            **over_workers({**more, "mode": options.mode}),
        )
        self.version = worker.pull(out={**values, **self._buffers.copies}, timeout=options.timeout).version
        self._buffers.land()
        if former is None and worker in _WORKERS and self.version > 0:
            log.warning(
                "this worker has trained another model in this job; this one continues with its values and moments: "
                'for a fresh start connect again, zmqps.connect(job="again")'
            )
        _WORKERS.add(worker)
        if any(float(state.get("step", 1)) > 0 for state in self.twin.state.values() if state):
            log.warning(
                "the moments that this optimizer has are not those of the job: write them with "
                "zmqps.checkpoint.from_torch and start the cluster with --restore"
            )
        self._numbers = Followed(worker, self.twin, len(values), sync=options.sync, timeout=options.timeout)
        if options.overlap:
            self._overlap = Overlap(
                self.model, worker, self._trained, self._watch.note, options.accumulate, options.timeout
            )
        elif options.sync:
            self._changed = Changed(self._trained)
        if options.share_gradients:
            self._share(worker)

    def _share(self, worker: Worker) -> None:
        """Let gradients be computed where servers on this host read them."""
        shared = worker.gradient_buffers(timeout=self.options.timeout)
        for name, parameter in self._trained:
            gradient = torch.from_numpy(shared[name])
            fits = parameter.device.type == "cpu" and parameter.dtype == gradient.dtype and parameter.is_contiguous()
            if fits and parameter.requires_grad:
                parameter.grad = gradient

    # --- a step --------------------------------------------------------------------------------

    def step(
        self, groups: Sequence[Mapping[str, Any]], *, scale: Any = None, unscaled: bool = False, skip: bool = False
    ) -> None:
        """Push what `backward` has left in the parameters, and take the values after it.

        Parameters
        ----------
        groups
            The optimizer's, whose hyper-parameters count.
        scale
            What gradients are multiplied with.
        unscaled
            Whether a `GradScaler` has divided them by that already.
        skip
            The gradients are not finite: leave the step out for all workers.
        """
        if self._overlap is not None:
            self._overlap.wait()  # a loop may step twice without a forward pass
        stepped = [] if skip else [parameter for _, parameter in self._trained if parameter.grad is not None]
        if self._numbers is not None and self._worker is not None:  # both, or neither
            self._watch.check()
            if self._changed is not None:
                self._changed.check(unscaled=unscaled, num_workers=self._worker.num_workers)
            self._numbers.follow(groups)
            if skip:
                self._skip(self._worker)
            else:
                self._push(self._worker, scale)
        # as any optimizer that writes in place: a backward pass through what is older now is refused
        torch.autograd.graph.increment_version(stepped)
        self._spread()
        if self._overlap is None or skip:  # else they are noted as they come
            self._watch.note_all()

    def _skip(self, worker: Worker) -> None:
        """Leave the step out for all, as with DDP, whose mean is infinite; what was written to buffers stays."""
        sent = self._buffers.push(worker, self.options.timeout)
        worker.skip(for_all=True, timeout=self.options.timeout)
        self.tables.follow()
        if self._overlap is not None and self._overlap.drop() and not self.options.sync:
            raise ConfigurationError(
                "overlap=True has pushed gradients that are not finite: use it without a GradScaler"
            )
        self._pull(worker, sent)

    def _push(self, worker: Worker, scale: Any) -> None:
        options = self.options
        sent = self._buffers.push(worker, options.timeout)
        sent += self.tables.push(scale, fetch=options.mode == "async", timeout=options.timeout)
        gradients = {name: parameter.grad for name, parameter in self._trained}
        if scale is not None:
            gradients = {name: None if g is None else g / scale for name, g in gradients.items()}
        if self._overlap is not None:
            pushed = self._overlap.pushed(scaled=scale is not None)
            gradients = {name: gradient for name, gradient in gradients.items() if name not in pushed}
        sent.append(worker.push_async(_arrays(gradients), step=True, timeout=options.timeout))
        self.tables.follow()
        if self._overlap is not None:
            self._overlap.pull(sent, self._buffers)
        else:
            self._pull(worker, sent)

    def _pull(self, worker: Worker, sent: Sequence[Future[Any]]) -> None:
        """Take the values after a step, when what was sent is there."""
        targets = {**{name: parameter.detach() for name, parameter in self._trained}, **self._buffers.returning()}
        pulled = worker.pull_async(out=_arrays(targets), timeout=self.options.timeout)
        for future in sent:
            future.result()
        self._arrive_at(pulled.result().version)
        self._buffers.end_step()

    def _arrive_at(self, version: int) -> None:
        if version < self.version and self._numbers is not None:
            self._numbers.forget()
        self.version = version

    def set_values(self) -> None:
        """Let the job have what is in the model."""
        self.wait()
        if self._worker is not None:
            timeout = self.options.timeout
            buffers = {name: tensor.detach().clone() for name, tensor in self._buffers.live().items()}
            values = {**parameters_of(self.model), **buffers}
            self._worker.set(values, step=self.options.mode != "async", timeout=timeout)
            self._pull(self._worker, [])
        self._spread()
        self._watch.note_all()

    # --- the optimizer's state -----------------------------------------------------------------

    def full_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of the optimizer that this was made from, by way of a checkpoint."""
        if self._worker is None:
            raise ConfigurationError("the process of this host that has the worker can read the state")
        self.wait()
        made = self._worker.checkpoint(timeout=self.options.timeout)
        self.twin.param_groups[:] = optimizer.param_groups
        return torch_state(open_checkpoint(made.path), self.twin, dict(self._trained))

    def take_groups(self, groups: list[dict[str, Any]]) -> None:
        """Let the optimizer that this was made from have these groups: schedules may write to its own."""
        self.twin.param_groups[:] = groups

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Say what of a state that is loaded the job does not take; refuse one that is later than the job.

        Raises
        ------
        ConfigurationError
            The job lacks the moments of that state.
        """
        if state["state"]:
            log.warning(
                "the moments in this state are not loaded, the servers keep theirs: write them with "
                "zmqps.checkpoint.from_torch and start the cluster with --restore"
            )
        saved: int | None = state.get("version")
        if saved is None or self._worker is None:
            return
        self.wait()
        if self.version < saved:
            raise ConfigurationError(
                f"this optimizer's state was saved at version {saved} of the job, which is at {self.version}: its "
                "moments are not on the servers. Save them by worker.checkpoint() when you save this state, and start "
                "the cluster with --restore and that checkpoint"
            )
        if self.options.sync and self.version > saved:
            log.warning(
                "this optimizer's state was saved at version %d of the job, which is now at %d: to go back, start "
                "the cluster with --restore and the checkpoint of version %d",
                saved, self.version, saved,
            )  # fmt: skip

    # --- the host ------------------------------------------------------------------------------

    def _spread(self) -> None:
        """Give the others of the process group what its first one has."""
        group = self.options.process_group
        if group is None:
            return
        self.wait()
        source = torch.distributed.get_global_rank(group, 0)
        own = self.options.buffers_by == "own"
        for tensor in (*parameters_of(self.model).values(), *(() if own else self._buffers.live().values())):
            torch.distributed.broadcast(tensor, source, group=group)

    def wait(self) -> None:
        """Return when all values of the last step are in the model."""
        if self._overlap is not None:
            self._overlap.wait()
            if self.options.sync and self._worker is not None:
                self._arrive_at(self._worker.statistics().clock)

    def close(self) -> None:
        """Let the model be, and the job train another one.

        Raises
        ------
        PSError
            The values of the last step have failed to come; all else is done.
        """
        try:
            if self._overlap is not None:
                self._overlap.wait()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for hooks in (self._overlap, self._changed):
            if hooks is not None:
                hooks.close()
        if self._worker is not None:
            release(self._worker, self.model)


def _arrays(tensors: Mapping[str, torch.Tensor | None]) -> dict[str, Any]:
    """Return tensors as what takes the shortest way: arrays where they share their memory, dense tensors else."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if tensor is None or tensor.layout != torch.strided:
            found[name] = None if tensor is None else tensor.to_dense()
        else:
            found[name] = tensor.numpy() if is_plain(tensor) else tensor
    return found
