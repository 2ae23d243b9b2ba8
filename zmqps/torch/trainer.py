"""What a step of an optimizer is when servers compute it: gradients out, values in."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed

from zmqps import checks
from zmqps.checkpoint import open_checkpoint
from zmqps.checkpoint.torch_state import torch_state
from zmqps.errors import ConfigurationError
from zmqps.torch.embedding import Tables, tables
from zmqps.torch.model import always_changed, buffers_of, parameters_of
from zmqps.torch.overlap import Overlap, is_plain
from zmqps.torch.rows import is_rows
from zmqps.torch.translate import spec_of
from zmqps.worker import Worker

log = logging.getLogger("zmqps")

#: What is done with buffers: workers average them, all take those of the chief, or each keeps its own.
BUFFERS = ("average", "chief", "own")


class Trainer:
    """The worker behind an optimizer.

    Parameters
    ----------
    model, worker, optimizer
        As for `zmqps.torch.Optimizer`. Learning rates are read from the optimizer's groups at each step.
    staleness, clip_norm, clip_value, count, buffers, overlap, accumulate, process_group, timeout, options
        Likewise.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        worker: Worker | None,
        optimizer: torch.optim.Optimizer,
        *,
        staleness: int | None = 0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        count: str = "pushes",
        buffers: str | None = None,
        share_gradients: bool = False,
        overlap: bool = False,
        accumulate: int = 1,
        process_group: Any = None,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        self.model = model
        self._worker = worker
        self._timeout = timeout
        self._process_group = process_group
        self._sync = staleness == 0
        self._buffers_by = checks.one_of("buffers", buffers or ("average" if self._sync else "chief"), BUFFERS)
        if self._buffers_by == "average" and not self._sync:
            raise ConfigurationError("buffers are averaged in a synchronous step: pass staleness=0, or buffers='chief'")
        if worker is None and process_group is None:
            raise ConfigurationError("worker=None is for processes of a process_group whose first one has the worker")
        if overlap and clip_norm is not None and not self._sync:
            raise ConfigurationError("overlap=True pushes before the norm is known: clip_norm needs staleness=0")
        named = [(name, parameter) for name, parameter in model.named_parameters() if not is_rows(parameter)]
        self.values = parameters_of(model)
        self.buffers = buffers_of(model)
        owned = {id(tensor) for each in optimizer.param_groups for tensor in each["params"]}
        self._trained = [(name, parameter) for name, parameter in named if id(parameter) in owned]
        self._told = self._rates(optimizer.param_groups)
        self._warned = False
        self._twin = optimizer
        self._telling: Future[bool] | None = None
        self._seen = _marks(self.buffers)
        self.tables = Tables(model, owned)
        if self.tables and process_group is not None:
            raise ConfigurationError("embeddings of tables want a worker in each process: leave out process_group")
        self._overlap: Overlap | None = None
        self.version = 0
        if worker is not None:
            spec = spec_of(optimizer, named, clip_norm=clip_norm, clip_value=clip_value, count=count)
            options |= {"optimizer": spec, "buffers": self.buffers, "staleness": staleness, "timeout": timeout}
            if self.tables:
                options["tables"] = {**(options.get("tables") or {}), **tables(model, worker, deferred=True)}
            worker.init(self.values, **options)
            self.version = worker.pull(out={**self.values, **self.buffers}, timeout=timeout).version
            if any(optimizer.state.values()):
                log.warning(
                    "the moments that this optimizer has are not those of the job: write them with "
                    "zmqps.checkpoint.from_torch and start the cluster with --restore"
                )
        self._spread({**self.values, **self.buffers})
        self._written = self._note_values()
        if overlap and worker is not None:
            self._overlap = Overlap(model, worker, self._trained, self.values, accumulate, timeout)
        if share_gradients and worker is not None:
            self._share(worker)

    def _share(self, worker: Worker) -> None:
        """Let gradients be computed where servers on this host read them."""
        shared = worker.gradient_buffers(timeout=self._timeout)
        for name, parameter in self._trained:
            gradient = torch.from_numpy(shared[name])
            fits = parameter.device.type == "cpu" and parameter.dtype == gradient.dtype and parameter.is_contiguous()
            if fits and parameter.requires_grad:
                parameter.grad = gradient

    # --- a step --------------------------------------------------------------------------------

    def step(self, groups: Sequence[Mapping[str, Any]], *, scale: Any = None, skip: bool = False) -> None:
        """Push what `backward` has left in the parameters, and take the values after it.

        Parameters
        ----------
        groups
            The optimizer's, whose learning rates count.
        scale
            What gradients were multiplied with.
        skip
            They are not finite: say so instead.
        """
        if self._worker is not None:
            self._step(self._worker, groups, scale, skip=skip)
        self._spread({**dict(self.values), **(self.buffers if self._buffers_by != "own" else {})})
        self._written = self._note_values()

    def _step(self, worker: Worker, groups: Sequence[Mapping[str, Any]], scale: Any, *, skip: bool) -> None:
        self._check_written()
        self.follow_rates(worker, groups)
        if self._overlap is not None:
            self._overlap.wait()  # a loop may step twice without a forward pass
        if skip:
            worker.skip(timeout=self._timeout)
            self.tables.ask()
            self._drop_pushed()
        else:
            sent = self._push_buffers(worker) + self.tables.push(scale)
            gradients = {name: parameter.grad for name, parameter in self._trained}
            if scale is not None:
                gradients = {name: None if g is None else g / scale for name, g in gradients.items()}
            if self._overlap is not None:
                pushed = self._overlap.pushed(scaled=scale is not None)
                gradients = {name: gradient for name, gradient in gradients.items() if name not in pushed}
            sent.append(worker.push_async(_arrays(gradients), step=True, timeout=self._timeout))
            self.tables.ask()
            if self._overlap is not None:
                self._overlap.pull(sent, self._own_buffers())
                self._note_buffers()
                return
            pulled = worker.pull_async(out=self._targets(), timeout=self._timeout)
            for future in sent:
                future.result()
            self.version = pulled.result().version
            self._note_buffers()
            return
        self.version = worker.pull(out=self._targets(), timeout=self._timeout).version
        self._note_buffers()

    def _note_values(self) -> list[int]:
        return [parameter._version for _, parameter in self._trained]

    def _check_written(self) -> None:
        """Warn, once, where somebody has written to a parameter: the next step brings the servers' values back."""
        if self._warned or self._written == (now := self._note_values()):
            return
        self._warned = True
        [name, *_] = [n for (n, _), old, new in zip(self._trained, self._written, now, strict=True) if old != new]
        log.warning(
            "%r was written to since the last step, and the values of the servers come back with this one: write them "
            "there, by worker.set(dict(model.named_parameters()))",
            name,
        )

    def _drop_pushed(self) -> None:
        if self._overlap is not None and self._overlap.drop() and not self._sync:
            raise ConfigurationError(
                "overlap=True has pushed gradients that are not finite: use it without a GradScaler"
            )

    def _targets(self) -> dict[str, Any]:
        """Return where values go: what is trained, where it lies now, and buffers."""
        return _arrays({**{name: parameter.detach() for name, parameter in self._trained}, **self._own_buffers()})

    # --- buffers -------------------------------------------------------------------------------

    def _push_buffers(self, worker: Worker) -> list[Future[None]]:
        """Bring the buffers that the forward pass has changed."""
        sent: list[Future[None]] = []
        if self._buffers_by == "own" or not self.buffers:
            return sent
        live = self._live()
        marks = _marks(live)
        modules = {name.rpartition(".")[0] for name in live if marks[name] != self._seen.get(name)}
        modules |= always_changed(self.model)
        changed = {name: tensor for name, tensor in live.items() if name.rpartition(".")[0] in modules}
        if self._buffers_by == "average":
            means = {name: tensor for name, tensor in changed.items() if tensor.is_floating_point()}
            if means:
                sent.append(worker.average_async(means, timeout=self._timeout))
            changed = {name: tensor for name, tensor in changed.items() if name not in means}
        if changed and worker.is_chief:
            sent.append(worker.set_async(changed, timeout=self._timeout))
        return sent

    def _own_buffers(self) -> dict[str, torch.Tensor]:
        """Return the buffers that come back with the values: in a synchronous step all have the same."""
        return self._live() if self._sync and self._buffers_by != "own" else {}

    def _live(self) -> dict[str, torch.Tensor]:
        """Return the buffers as they are now: a module may have put others in their place."""
        now = dict(self.model.named_buffers())
        return {name: now[name].detach() for name in self.buffers if name in now}

    def _note_buffers(self) -> None:
        self._seen = _marks(self._live())

    # --- learning rates ------------------------------------------------------------------------

    def _rates(self, groups: Sequence[Mapping[str, Any]]) -> list[float]:
        return [float(each["lr"]) for each in groups]

    def follow_rates(self, worker: Worker, groups: Sequence[Mapping[str, Any]]) -> None:
        """Tell the servers the learning rates of the groups, if a scheduler has changed them and this is the chief."""
        if self._telling is not None and self._telling.done():
            self._telling.result()  # or it says here why not
            self._telling = None
        rates = self._rates(groups)
        if rates == self._told:
            return
        if not worker.is_chief:
            return  # told again by whoever becomes it
        of_groups: list[float | None] = [
            rate for rate, each in zip(rates[1:], groups[1:], strict=True) if not all(map(is_rows, each["params"]))
        ]
        of_groups += [None] * (len(self._trained) < len(self.values))  # the group of those that are frozen
        self._telling = worker.set_learning_rate_async(rates[0], groups=of_groups or None, timeout=self._timeout)
        self._told = rates

    # --- the optimizer's state -----------------------------------------------------------------

    def full_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of the optimizer that this was made from, by way of a checkpoint."""
        if self._worker is None:
            raise ConfigurationError("the process of this host that has the worker can read the state")
        self.wait()
        made = self._worker.checkpoint(timeout=self._timeout)
        self._twin.param_groups[:] = optimizer.param_groups
        return torch_state(open_checkpoint(made.path), self._twin, dict(self._trained))

    # --- the host ------------------------------------------------------------------------------

    def _spread(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Give the others of the process group what its first one has."""
        group = self._process_group
        if group is None:
            return
        self.wait()
        source = torch.distributed.get_global_rank(group, 0)
        for tensor in tensors.values():
            torch.distributed.broadcast(tensor, source, group=group)

    def wait(self) -> None:
        """Return when all values of the last step are in the model."""
        if self._overlap is not None:
            self._overlap.wait()
            if self._sync and self._worker is not None:
                self.version = self._worker.statistics().clock

    def close(self) -> None:
        """Take the hooks off the model."""
        if self._overlap is not None:
            self._overlap.wait()
            self._overlap.close()


def _arrays(tensors: Mapping[str, torch.Tensor | None]) -> dict[str, Any]:
    """Return tensors as what takes the shortest way: arrays where they share their memory, dense tensors else."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if tensor is None or tensor.layout != torch.strided:
            found[name] = None if tensor is None else tensor.to_dense()
        else:
            found[name] = tensor.numpy() if is_plain(tensor) else tensor
    return found


def _marks(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, int]]:
    """Return by name what changes when a tensor is written to, or another one takes its place."""
    return {name: (tensor.data_ptr(), tensor._version) for name, tensor in tensors.items()}
