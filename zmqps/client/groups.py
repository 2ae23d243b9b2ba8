"""Groups of options of `zmqps.Worker.init`: what is seldom said, under the name of its subject."""

from __future__ import annotations

from dataclasses import dataclass

from zmqps import checks
from zmqps.core.treatments import Treatment
from zmqps.errors import ConfigurationError


@checks.options_of("Steps")
@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What a synchronous step consists of, and what it waits for; an option of `zmqps.Worker.init`.

    Parameters
    ----------
    aggregate : int, optional
        How many gradients make a step. If fewer than the workers, the first complete ones count; later ones are dropped
        and counted (backup workers). If more, workers push several batches in a step. By default one of every live
        worker.
    on_straggler : {"wait", "continue", "fail"}
        What to do when a step takes longer than earlier steps suggest: wait on, continue without the late workers, or
        let the waiting ones fail with `DeadlineError`.
    mean : {"pushed", "workers"}, optional
        What each element's sum of gradients is divided by. ``pushed``, the default of `zmqps.Worker.init`: the examples
        of the workers that pushed it, so workers may hold different layers. ``workers``, the default of frameworks: the
        examples of all workers of the step except those that skip it, as in PyTorch's DDP, Horovod or one process with
        the whole batch; a worker that pushed nothing for an element counts as zeros. Elements that no worker pushed are
        not updated.
    retain : int
        How many versions before the current one ``pull(exact=…)`` can still read.
    deterministic : bool
        Refuse what would make the result depend on the order of arrival, which is ``aggregate``,
        ``on_straggler="continue"``, `zmqps.Worker.ranges`, and a cluster that does not know how many workers to expect.
        Contributions are always added in the order of ranks, so a run without these gives the same bits each time, as
        long as no worker joins or leaves.
    """

    aggregate: int | None = None
    on_straggler: str = "wait"
    mean: str | None = None
    retain: int = 0
    deterministic: bool = False


@checks.options_of("Gradients")
@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Which gradients servers take, and how; an option of `zmqps.Worker.init`.

    Parameters
    ----------
    nonfinite : {"reject", "allow"}
        Whether a push with NaN or infinity in it is refused.
    treatment : Treatment, optional
        Not synchronous: how servers treat stale gradients, from `zmqps.stale`.
    """

    nonfinite: str = "reject"
    treatment: Treatment | None = None

    def check(self) -> None:
        """Raise `ConfigurationError` if the treatment is not one."""
        if not isinstance(self.treatment, Treatment | None):
            raise ConfigurationError(
                f"treatment comes from zmqps.stale, as drop(bound=8); got {checks.shown(self.treatment)}"
            )
