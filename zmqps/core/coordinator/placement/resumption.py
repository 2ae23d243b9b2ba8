"""What a job begins from that was saved: its checkpoint, as the coordinator knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zmqps.core.coordinator.journal import Changed, nothing
from zmqps.core.job.spec import JobSpec, shown
from zmqps.core.protocol.terms import Rates
from zmqps.errors import JobMismatchError


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """A checkpoint to begin a job from."""

    path: str
    job: JobSpec
    version: int = 0  # the clock to continue with: synchronous steps, or the slowest worker's clock
    data: Sequence[Any] = ()  # where the data sets are (`DataSets.saved`)
    state: Mapping[str, Any] = field(default_factory=dict)  # what the user has saved with it
    #: Whether slots and step counts are restored; else the optimizer starts from scratch, and may be another one.
    optimizer: bool = True
    #: Name of a parameter in the job -> its name in the checkpoint, where they differ.
    names: Mapping[str, str] = field(default_factory=dict)
    read_at: str = ""  # where servers read it, if by another path
    rates: Rates = ()  # the numbers that the chief had set, as they travel
    #: The revision of the shards that it was made of: of others workers number their pushes in another way.
    cut: int = 0

    @property
    def owner(self) -> str:
        """What described the job, for errors."""
        return f"the checkpoint {self.path}"

    def offered(self) -> JobSpec | None:
        """Return the job for workers that take it as it is; None if a worker must describe it first."""
        if not self.optimizer:
            return None
        theirs = {in_checkpoint: in_job for in_job, in_checkpoint in self.names.items()}
        parameters = tuple(replace(p, name=theirs.get(p.name, p.name)) for p in self.job.parameters)
        return replace(self.job, parameters=parameters)

    def check(self, job: JobSpec) -> None:
        """Raise `JobMismatchError` unless a job that a worker describes can begin here.

        The parameters must be those that were saved; servers compare them where the names are mapped. How the job is
        synchronised may differ.
        """
        offered = self.offered()
        if offered is None:
            return
        advice = "start the cluster without --restore, or with --restore-names where only names differ"
        offered.check_same(replace(offered, parameters=job.parameters), self.owner, advice)
        if dict(offered.optimizer) != dict(job.optimizer):
            raise JobMismatchError(
                what="optimizer",
                ours=shown(job.optimizer),
                theirs=shown(offered.optimizer),
                owner=self.owner,
                advice="restore values only: --restore-values-only, restore_values_only=True",
            )

    def source(self) -> dict[str, Any]:
        """Return what servers are sent (`Assign.restore`)."""
        path, names = self.read_at or self.path, dict(self.names)
        return {"path": path, "version": self.version, "optimizer": self.optimizer, "names": names}

    def dump(self, *, brief: bool = False) -> list[Any]:
        """Return it as plain data, for the coordinator's journal; ``brief``: without the job, which may be large."""
        return [
            self.path, {} if brief else self.job.to_wire(), self.version, list(self.data), dict(self.state),
            self.optimizer, dict(self.names), self.read_at, list(self.rates), self.cut,
        ]  # fmt: skip

    @classmethod
    def restored(cls, kept: Sequence[Any], known: JobSpec | None = None) -> Resumption:
        """Return the one that was kept; ``known``: the job of a brief one."""
        path, job, version, data, state, optimizer, names, read_at, rates, cut = kept
        return cls(
            path=path, job=known or JobSpec.from_wire(job), version=version, data=data, state=state,
            optimizer=optimizer, names=names, read_at=read_at, rates=tuple(rates), cut=cut,
        )  # fmt: skip

    def told(self) -> dict[str, Any]:
        """Return what members are sent (`Job.restored`)."""
        return {"path": self.path, "version": self.version, "state": dict(self.state)}


class Resumptions:
    """The checkpoints that jobs of some names begin from, the first time."""

    def __init__(self, by_name: Mapping[str, Resumption], changed: Changed = nothing) -> None:
        self.used: dict[str, None] = {}  # the jobs that have begun so, and ended
        self._by_name = by_name
        self._changed = changed

    def of(self, name: str) -> Resumption | None:
        """Return what a job of this name begins from now; None: from its initial values."""
        return None if name in self.used else self._by_name.get(name)

    def use_up(self, name: str) -> None:
        """A job of this name has ended."""
        if name in self._by_name:
            self.used[name] = None
            self._changed()
