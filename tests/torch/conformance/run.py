"""Runs combinations as workers of a cluster in this process, and says what became of each."""

from __future__ import annotations

import itertools
import logging
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed

import zmqps
import zmqps.torch
from tests.inprocess import InProcessCluster
from tests.torch.conformance import optimizers
from tests.torch.conformance.cases import MODES, WITHOUT_OVERLAP, Case, possible
from tests.torch.conformance.loops import LOOPS
from tests.torch.conformance.models import MODELS
from tests.torch.conformance.references import Result, ddp_like, in_threads, prepared
from zmqps.errors import ConfigurationError, DtypeError, OptimizerError
from zmqps.torch import overlap

#: Seconds that a wait of a worker may take; a whole case takes a tenth of one.
TIMEOUT = 15.0
#: Errors that refuse something; any other is a failure.
REFUSALS = (ConfigurationError, OptimizerError, DtypeError)
#: What an error may name: options of zmqps, and words for the parts of a script.
OPTIONS = (
    "overlap", "share_gradients", "process_group", "buffers", "accumulate", "clip_norm", "clip_value", "param group",
    "momentum", "betas", "weight_decay", "dampening", "nesterov", "eps", "alpha", "rho", "lr", "lr_decay",
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What became of a case.

    Parameters
    ----------
    case
        Which.
    kind
        ``equal``; ``documented``: what docs/torch.md says in place of what DDP does; ``warned``: likewise, with a
        warning; ``refused``; ``impossible``: plain PyTorch raises, too; ``failed``.
    text
        The error, or how far the values are.
    seconds
        How long it took.
    cause
        Of a failure: the values without which it does not fail.
    """

    case: Case
    kind: str
    text: str = ""
    seconds: float = 0.0
    cause: str = ""


@lru_cache(maxsize=256)
def reference(what: tuple[Any, ...], **variant: bool) -> list[Result] | str:
    """Return what plain PyTorch makes of a case, or its error."""
    try:
        return ddp_like(*what, **variant)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


#: What zmqps warns of, once, where a script changes gradients on one of several workers, as docs/torch.md says.
CHANGED = "was changed between backward and step"
#: Where it writes to parameters, which the next step undoes.
WRITTEN = "was written to since the last step"
#: What share_gradients=True does to gradients that are None, as the docstring of `zmqps.torch.Optimizer` says.
ZEROS = "with share_gradients a parameter that is not used has a gradient of zeros, not None"

#: When workers share buffers.
STALE = "buffers are shared in step(), where DDP shares them before each forward pass"


def variants(case: Case, said: Sequence[str]) -> Iterator[tuple[dict[str, bool], str]]:
    """Return other references that are as right as that of DDP for a case, and where the documents say so."""
    loop = LOOPS[case.loop]
    texts = {"by_step": loop.documented if case.workers > 1 else "", "zeros": ZEROS if "share" in case.mode else ""}
    if loop.writes or MODELS[case.model].writes:
        texts["undone"] = next((WRITTEN for each in said if WRITTEN in each), "")
    if case.workers > 1 and any(True for _ in MODELS[case.model].build().buffers()):
        texts["stale"] = STALE
    possible = [name for name, text in texts.items() if text]
    for number in range(1, len(possible) + 1):
        for names in itertools.combinations(possible, number):
            yield dict.fromkeys(names, True), "; ".join(texts[name] for name in names)


def difference(case: Case, ours: Sequence[Result], theirs: Sequence[Result], *, exact: bool = False) -> str:
    """Return where two differ by more than the model's tolerance, or an empty text."""
    tolerance = 0.0 if exact else MODELS[case.model].tolerance
    for rank, result in enumerate(ours):
        # in DDP the buffers of the first are everyone's
        expected = (("parameter", result.parameters, theirs[rank].parameters),
                    ("buffer", result.buffers, theirs[0].buffers),
                    ("value read:", result.seen, theirs[rank].seen))  # fmt: skip
        for kind, mine, right in expected:
            if mine.keys() != right.keys():
                return f"rank {rank} has other {kind}s: {sorted(mine.keys() ^ right.keys())}"
            for name, value in mine.items():
                if far := _distance(value, right[name], tolerance):
                    return f"{kind} {name} of rank {rank} is {far}"
    return ""


def _distance(mine: torch.Tensor, right: torch.Tensor, tolerance: float) -> str:
    if mine.shape != right.shape:
        return f"of shape {tuple(mine.shape)}, not {tuple(right.shape)}"
    if torch.equal(mine, right) or not mine.numel():
        return ""
    mine, right = mine.double(), right.double()
    if not torch.equal(mine.isfinite(), right.isfinite()):
        return "not finite"
    mine, right = mine.nan_to_num(), right.nan_to_num()
    far = float((mine - right).abs().max()) / max(float(right.abs().max()), 1e-300)
    return f"off by {far:.1e} of the largest" if far > tolerance else ""


class Said(logging.Handler):
    """Keeps what zmqps warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "zmqps":  # not the nodes of this cluster
            self.texts.append(record.getMessage())


class Suite:
    """A cluster that runs one case after the other, each as a job of its own; ends with the context."""

    def __init__(self) -> None:
        self._cluster = InProcessCluster(servers=2, slice_size=256)
        self._jobs = 0
        self._known: dict[Case, str] = {}
        self._said = Said()
        self._group = False

    def __enter__(self) -> Self:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._cluster.__enter__()
        self._bucket_nbytes = overlap.BUCKET_NBYTES
        self._keeper = zmqps.connect(self._cluster.address, job="keeper", name="keeper")
        logging.getLogger("zmqps").addHandler(self._said)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        logging.getLogger("zmqps").removeHandler(self._said)
        overlap.BUCKET_NBYTES = self._bucket_nbytes
        if self._group:
            torch.distributed.destroy_process_group()
        self._keeper.close()
        self._cluster.__exit__(kind, error, tb)
        torch.set_num_threads(self._threads)

    # --- a case --------------------------------------------------------------------------------

    def run(self, case: Case) -> Verdict:
        """Run a case, and compare."""
        begun = time.perf_counter()
        if case.model.startswith("compiled"):
            torch._dynamo.reset()  # or it gives up compiling what it has compiled for so many cases
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            right = reference(case.reference)
            theirs = [str(w.message) for w in warned]
            warned.clear()
            kind, text = self._verdict(case, right)
            ours = {str(w.message) for w in warned if "lr_scheduler" in str(w.message)} - set(theirs)
        by_hand = case.workers > 1 and "gradient" in LOOPS[case.loop].words  # which is warned of, as docs/torch.md says
        said = [text for text in self._said.texts if not (by_hand and CHANGED in text)]
        if kind == "equal" and (unexpected := [*ours, *said]):
            kind, text = "failed", f"a warning that PyTorch does not give: {unexpected[0]}"
        self._known[case] = kind
        return Verdict(case, kind, text, time.perf_counter() - begun)

    def cause(self, failed: Case) -> Case:
        """Return the plainest case that fails likewise: each value that need not be there is the default one."""
        for axis in ("loop", "schedule", "groups", "mode", "workers", "model", "rule"):
            plainer = replace(failed, **{axis: getattr(Case, axis)})
            if plainer == failed or not possible(asdict(plainer)):
                continue
            if plainer not in self._known:
                self._known[plainer] = self.run(plainer).kind
            if self._known[plainer] == "failed":
                failed = plainer
        return failed

    def _verdict(self, case: Case, right: list[Result] | str) -> tuple[str, str]:
        self._said.texts.clear()
        if isinstance(right, str):
            return "impossible", right
        if not all(value.isfinite().all() for result in right for value in result.parameters.values()):
            return "impossible", "what PyTorch has trained is not finite"
        try:
            ours = self.train(case)
        except REFUSALS as error:
            words = (*OPTIONS, *LOOPS[case.loop].words, *MODELS[case.model].words)
            named = any(word in str(error) for word in words)
            return ("refused" if named else "failed"), f"{type(error).__name__}: {error}"
        except Exception as error:
            return "failed", f"{type(error).__name__}: {error}"
        if not (text := difference(case, ours, right)):
            return self._exactly(case, ours)
        for variant, documented in variants(case, self._said.texts):
            other = reference(case.reference, **variant)
            if not isinstance(other, str) and not difference(case, ours, other):
                return ("warned" if "undone" in variant else "documented"), documented
        return "failed", text

    def _exactly(self, case: Case, ours: Sequence[Result]) -> tuple[str, str]:
        """What overlaps has to be equal to the last bit to what does not."""
        if case.mode not in WITHOUT_OVERLAP:
            return "equal", ""
        try:
            other = self.train(replace(case, mode=WITHOUT_OVERLAP[case.mode]))
        except Exception as error:
            return "failed", f"without overlap it fails: {type(error).__name__}: {error}"
        text = difference(case, ours, other, exact=True)
        return ("failed", f"not to the bit as without overlap: {text}") if text else ("equal", "")

    def train(self, case: Case) -> list[Result]:
        """Train as the workers of a job, and return what each has, by rank.

        Raises
        ------
        Exception
            The first of any worker.
        """
        self._jobs += 1
        overlap.BUCKET_NBYTES = self._bucket_nbytes if case.mode == "overlap-late" else 1
        job, model = f"case-{self._jobs}", MODELS[case.model]
        modules = [model.build() for _ in range(case.workers)]
        connect = partial(zmqps.connect, self._cluster.address, job=job, timeout=TIMEOUT)
        workers = [connect(name=f"{job}-{number}") for number in range(case.workers)]

        def stop() -> None:
            for worker in workers:
                worker.close()

        def work(number: int) -> Result:
            result = self._as_worker(case, modules[number], workers[number])
            workers[number].finish()
            return result

        try:
            found = in_threads([partial(work, number) for number in range(case.workers)], stop, 2 * TIMEOUT)
            return [found[worker.rank] for worker in workers] if case.workers > 1 else found
        finally:
            stop()

    def _as_worker(self, case: Case, module: torch.nn.Module, worker: zmqps.Worker) -> Result:
        loop, model = LOOPS[case.loop], MODELS[case.model]
        options = {"mode": "sync", "workers": case.workers, "timeout": TIMEOUT, **MODES[case.mode], **loop.options}
        if case.workers > 1:
            options["buffers"] = "chief"  # as DDP
        if case.mode in WITHOUT_OVERLAP:
            options |= loop.with_overlap
        if case.mode == "group":
            options["process_group"] = self._alone()
        theirs = optimizers.make(case.rule, case.groups, module)

        def go(optimizer: Any) -> Callable[[], Result]:
            run = prepared(model, case.schedule, module, optimizer, worker.rank, case.workers)
            loop.run(run)
            return lambda: Result(run)

        if case.mode.startswith("training"):
            with zmqps.torch.training(module, theirs, worker, **options) as optimizer:
                result = go(optimizer)
            return result()
        optimizer = zmqps.torch.Optimizer(module, worker, theirs, **options)
        result = go(optimizer)
        optimizer.synchronize()
        return result()

    def _alone(self) -> Any:
        """Return a process group of this process alone."""
        if not self._group:
            store = torch.distributed.HashStore()
            torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
            self._group = True
        return torch.distributed.group.WORLD


def say(verdict: Verdict) -> None:
    """Print one verdict."""
    print(f"{verdict.kind:10} {verdict.seconds:6.2f} s {verdict.case} {verdict.text[:120]}", flush=True)


def say_nothing(verdict: Verdict) -> None:
    """Leave it to the table."""


def run_all(cases: Iterable[Case], tell: Callable[[Verdict], None] = say_nothing) -> list[Verdict]:
    """Run cases, and return what became of them."""
    verdicts = []
    with Suite() as suite:
        for case in cases:
            verdict = suite.run(case)
            if verdict.kind == "failed":
                verdict = replace(verdict, cause=suite.cause(case).unusual())
            verdicts.append(verdict)
            tell(verdicts[-1])
    return verdicts


def _whatever_it_names(text: str) -> str:
    return re.sub(r"'[^']*[.\d][^']*'", "'…'", text)


def table(verdicts: Sequence[Verdict], replay: str = "python -m tests.torch.conformance --case") -> str:
    """Return what became of cases, by kind, with each error and failure and how to replay one."""
    kinds = Counter(verdict.kind for verdict in verdicts)
    lines = ["combinations " + ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()))]
    for kind in ("documented", "warned", "impossible", "refused"):
        texts = Counter(_whatever_it_names(verdict.text) for verdict in verdicts if verdict.kind == kind)
        examples = {_whatever_it_names(v.text): v.case for v in reversed(verdicts) if v.kind == kind}
        lines += [f"{kind} {number} × {text}\n    such as {examples[text]}" for text, number in texts.most_common()]
    failures = [verdict for verdict in verdicts if verdict.kind == "failed"]
    for cause, number in Counter(verdict.cause for verdict in failures).most_common():
        lines.append(f"failed {number} × with {cause or 'the plainest case'}")
        first, *_ = sorted((verdict for verdict in failures if verdict.cause == cause), key=lambda v: v.text)
        lines += [f"    {first.text[:300]}", f"    {replay} {first.case}"]
    return "\n".join(lines)
