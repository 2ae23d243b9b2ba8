"""From an optimizer of ``torch.optim`` to the one of `zmqps.optim` with the same equation and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

from zmqps.client.futures import begins
from zmqps.errors import OptimizerError, listed
from zmqps.optim import OptimizerSpec, adadelta, adagrad, adam, adamw, amsgrad, group, rmsprop, sgd
from zmqps.torch.rows import is_rows
from zmqps.worker import Worker

#: How PyTorch computes, not what.
OF_NO_CONSEQUENCE = frozenset({"foreach", "fused", "capturable"})
#: Options that zmqps has only at this value.
OFF = {"maximize": False, "differentiable": False}

#: A param group's options; the numbers of one by their names in `zmqps.optim`.
Options = Mapping[str, Any]
Row = dict[str, Any]


class Kind(NamedTuple):
    """How an optimizer of PyTorch is translated.

    Parameters
    ----------
    make
        Makes ours of the options of the first param group, and of the numbers of all.
    numbers
        Options that are numbers -> what they are called here. All others are flags, which groups have in common.
    """

    make: Callable[[Options, Sequence[Row], dict[str, Any]], OptimizerSpec]
    numbers: Mapping[str, tuple[str, ...]]


def _sgd(o: Options, rows: Sequence[Row], common: dict[str, Any]) -> OptimizerSpec:
    nesterov = bool(o["nesterov"]) and any(row["momentum"] for row in rows)
    return sgd(nesterov=nesterov, **rows[0], **common)


def _adam(o: Options, rows: Sequence[Row], common: dict[str, Any]) -> OptimizerSpec:
    decoupled = bool(o.get("decoupled_weight_decay", False))
    if o["amsgrad"]:
        return amsgrad(decoupled=decoupled, **rows[0], **common)
    return adamw(**rows[0], **common) if decoupled else adam(**rows[0], **common)


def _adamw(o: Options, rows: Sequence[Row], common: dict[str, Any]) -> OptimizerSpec:
    return _adam({**o, "decoupled_weight_decay": True}, rows, common)


def _adagrad(o: Options, rows: Sequence[Row], common: dict[str, Any]) -> OptimizerSpec:
    return adagrad(initial_accumulator_value=o["initial_accumulator_value"], **rows[0], **common)


def _rmsprop(o: Options, rows: Sequence[Row], common: dict[str, Any]) -> OptimizerSpec:
    return rmsprop(centered=o["centered"], **rows[0], **common)


def _adadelta(o: Options, rows: Sequence[Row], common: dict[str, Any]) -> OptimizerSpec:
    return adadelta(**rows[0], **common)


_ALL = {"lr": ("learning_rate",), "weight_decay": ("weight_decay",)}
_ADAM = {**_ALL, "betas": ("b1", "b2"), "eps": ("eps",)}
#: By class; a class derived from one of these may compute anything, and is refused.
KNOWN: dict[type, Kind] = {
    torch.optim.SGD: Kind(_sgd, {**_ALL, "momentum": ("momentum",), "dampening": ("dampening",)}),
    torch.optim.Adam: Kind(_adam, _ADAM),
    torch.optim.AdamW: Kind(_adamw, _ADAM),
    torch.optim.Adagrad: Kind(_adagrad, {**_ALL, "lr_decay": ("learning_rate_decay",), "eps": ("eps",)}),
    torch.optim.RMSprop: Kind(_rmsprop, {**_ALL, "alpha": ("decay",), "eps": ("eps",), "momentum": ("momentum",)}),
    torch.optim.Adadelta: Kind(_adadelta, {**_ALL, "rho": ("rho",), "eps": ("eps",)}),
}


def _known(optimizer: torch.optim.Optimizer, kind: Kind, rows: Sequence[Row]) -> set[str]:
    """Return what our optimizer calls its numbers; no group's momentum counts here, which Nesterov's would need."""
    return {"learning_rate", *kind.make({**optimizer.param_groups[0], "nesterov": False}, rows, {}).hyper}


def spec_of(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]],
    *,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    count: str = "pushes",
) -> OptimizerSpec:
    """Return the optimizer of `zmqps.optim` with the equation and numbers of a PyTorch optimizer.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        SGD, Adam, AdamW, Adagrad, RMSprop or Adadelta. Its param groups may differ in every number: ``lr``,
        ``weight_decay``, ``momentum``, ``betas``, ``eps``, … but not in flags, such as ``nesterov``.
    named_parameters : iterable of (str, Tensor)
        ``model.named_parameters()``. Parameters in no group of the optimizer are frozen.
    clip_norm, clip_value, count
        As for each optimizer of `zmqps.optim`.

    Raises
    ------
    OptimizerError
        It is of another class, or has an option that zmqps lacks; names the known ones.
    """
    kind = _kind(optimizer)
    _check_options(optimizer, kind)
    names = {id(tensor): name for name, tensor in named_parameters if not is_rows(tensor)}
    rows = [_row(kind, each) for each in optimizer.param_groups]
    common: dict[str, Any] = {"clip_norm": clip_norm, "clip_value": clip_value, "count": count}
    known = _known(optimizer, kind, rows)
    groups, owned = [], set[str]()
    for number, (each, row) in enumerate(zip(optimizer.param_groups, rows, strict=True)):
        dense = _dense(each)
        if any(id(tensor) not in names for tensor in dense):
            raise OptimizerError(f"param group {number} has tensors that are not among the parameters of the model")
        own = [names[id(tensor)] for tensor in dense]
        owned.update(own)
        if number and own:
            both = {name: row[name] for name in ("learning_rate", "weight_decay")}
            differs = {name: value for name, value in row.items() if name in known and value != rows[0][name]}
            groups.append(group(names=own, **both | differs))
    if frozen := [name for name in names.values() if name not in owned]:
        groups.append(group(names=frozen, frozen=True))
    return kind.make(optimizer.param_groups[0], rows, {**common, "groups": groups})


class Numbers:
    """The numbers of a PyTorch optimizer's param groups, as `zmqps.Worker.set_hyperparameters` takes them.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        As `spec_of` has translated it.
    num_parameters : int
        How many parameters the model has.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, num_parameters: int) -> None:
        kind = self._kind = _kind(optimizer)
        self._flags = _flags(optimizer, kind)
        self._options = [*kind.numbers, *self._flags]
        self._began = [self._read(each) for each in optimizer.param_groups]
        rows = [_row(kind, each) for each in optimizer.param_groups]
        numbers = {name for names in kind.numbers.values() for name in names}
        self._sent = _known(optimizer, kind, rows) & numbers
        self._has_momentum = any(row.get("momentum") for row in rows)
        self._used = [number for number, each in enumerate(optimizer.param_groups) if number and _dense(each)]
        owned = {id(tensor) for each in optimizer.param_groups for tensor in _dense(each)}
        self._frozen = len(owned) < num_parameters
        self._last = self._began
        self._now = self._translated(optimizer.param_groups)

    def now(self, groups: Sequence[Options]) -> tuple[Row, list[Row | None] | None]:
        """Return ``values, groups`` of `zmqps.Worker.set_hyperparameters`: every number as it is.

        Parameters
        ----------
        groups : sequence of mapping
            The ``param_groups`` of the optimizer.

        Returns
        -------
        tuple
            The same object as before as long as nothing has changed; it takes a few microseconds to see that.

        Raises
        ------
        OptimizerError
            A flag has changed, or there is momentum now where there was none: servers would need other state.
        """
        read = [self._read(each) for each in groups]
        if read != self._last:
            self._check(groups, read)
            self._now = self._translated(groups)
            self._last = read
        return self._now

    def _read(self, each: Options) -> list[Any]:
        return [_plain(each.get(option)) for option in self._options]

    def _translated(self, groups: Sequence[Options]) -> tuple[Row, list[Row | None] | None]:
        rows = [
            {name: value for name, value in _row(self._kind, each).items() if name in self._sent} for each in groups
        ]
        return rows[0], [*(rows[number] for number in self._used), *[None] * self._frozen] or None

    def _check(self, groups: Sequence[Options], read: Sequence[Sequence[Any]]) -> None:
        if len(read) != len(self._began):
            raise OptimizerError(f"the job began with {len(self._began)} param groups, now there are {len(read)}")
        for number, (now, began) in enumerate(zip(read, self._began, strict=True)):
            for option, new, old in zip(self._options, now, began, strict=True):
                refused = option in self._flags and new != old
                if option == "momentum" and new:
                    refused = not self._has_momentum
                if option == "dampening" and new:
                    refused = groups[0]["nesterov"]
                if refused:
                    raise OptimizerError(
                        f"param group {number}: {option} changed from {old} to {new}, which needs other state on the "
                        "servers than the job began with: set it before zmqps.torch.Optimizer is made"
                    )


def _dense(each: Options) -> list[torch.Tensor]:
    """Return the parameters of a group that the job has: not the rows of tables."""
    return [tensor for tensor in each["params"] if not is_rows(tensor)]


def _kind(optimizer: torch.optim.Optimizer) -> Kind:
    kind = KNOWN.get(type(optimizer))
    if kind is None:
        known = ", ".join(cls.__name__ for cls in KNOWN)
        raise OptimizerError(
            f"torch.optim.{type(optimizer).__name__} has no equal on zmqps' servers; there are {known}, and those of "
            "zmqps.optim for worker.push"
        )
    return kind


def _flags(optimizer: torch.optim.Optimizer, kind: Kind) -> list[str]:
    """Return the options that all groups have in common, and that stay as they are."""
    return [option for option in optimizer.defaults if option not in kind.numbers and option not in OF_NO_CONSEQUENCE]


def _plain(value: Any) -> Any:
    """Return an option that can be compared: of a tensor, which may be written to, its number."""
    if isinstance(value, tuple | list):
        return tuple(map(float, value))
    return float(value) if isinstance(value, torch.Tensor) else value


def _row(kind: Kind, each: Options) -> Row:
    """Return the numbers of a param group by their names in `zmqps.optim`."""
    row: Row = {}
    for option, names in kind.numbers.items():
        values = each[option] if len(names) > 1 else (each[option],)
        row |= zip(names, map(float, values), strict=True)
    return row


def _check_options(optimizer: torch.optim.Optimizer, kind: Kind) -> None:
    name, groups = type(optimizer).__name__, optimizer.param_groups
    for option, value in OFF.items():
        if any(each.get(option, value) != value for each in groups):
            raise OptimizerError(f"torch.optim.{name}({option}={not value}) has no equal on zmqps' servers")
    flags = _flags(optimizer, kind)
    if differing := [flag for flag in flags if any(each.get(flag) != groups[0].get(flag) for each in groups)]:
        raise OptimizerError(
            f"param groups may differ in {listed(list(kind.numbers), len(kind.numbers))} on zmqps' servers, not in "
            f"{listed(differing, 4)}"
        )
    if groups[0].get("nesterov") and any(each["dampening"] for each in groups):
        raise OptimizerError("SGD(nesterov=True, dampening=…) has no equal on zmqps' servers: leave out dampening")


class Followed:
    """Sends the servers what the groups of an optimizer hold, if this worker is the chief of the job.

    Nothing is assumed to be known there before this worker has sent it: the job may come from a checkpoint, or have had
    another chief. What has not changed since is not sent again.

    Parameters
    ----------
    worker
        Of the job.
    optimizer
        That the job was made from.
    num_parameters
        How many the model has.
    sync
        Whether a step itself decides with which numbers it is done. Otherwise a push has those that hold when it
        begins, so this waits for the answer.
    timeout
        Of each call.
    """

    def __init__(
        self,
        worker: Worker,
        optimizer: torch.optim.Optimizer,
        num_parameters: int,
        *,
        sync: bool,
        timeout: float | None,
    ) -> None:
        self._worker = worker
        self._numbers = Numbers(optimizer, num_parameters)
        self._parameters = [list(map(id, each["params"])) for each in optimizer.param_groups]
        self._sync = sync
        self._timeout = timeout
        self._sent: Any = None
        self._pending: Future[bool] | None = None

    def follow(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Send what the groups hold, for the step that is pushed next and those after it.

        Raises
        ------
        OptimizerError
            A flag has changed, or a number that the servers' rule does not have.
        PSError
            As `zmqps.Worker.set_hyperparameters`, of a step before. The next step sends the numbers again.
        """
        self._take_answer()
        if [list(map(id, each["params"])) for each in groups] != self._parameters:
            raise OptimizerError(
                "the parameters of the param groups are not those that the job began with: one was replaced, or taken "
                "out. Write to parameters in place, and freeze those that stay as they are (requires_grad_(False))"
            )
        now = self._numbers.now(groups)
        if not self._worker.is_chief:
            self._sent = None
        elif now is not self._sent:
            values, of_groups = now
            self._pending = begins(Worker.set_hyperparameters)(
                self._worker, values, groups=of_groups, timeout=self._timeout
            )
            self._sent = now
            if not self._sync:
                self._pending.exception()
                self._take_answer()

    def forget(self) -> None:
        """The job went back to a checkpoint, with the numbers of that: send all again."""
        self._sent = None

    def _take_answer(self) -> None:
        """Look at the answer to what was sent, if it is there."""
        if self._pending is not None and self._pending.done():
            (pending, self._pending), (sent, self._sent) = (self._pending, None), (self._sent, None)
            if pending.result():  # else another worker is the chief by now
                self._sent = sent
