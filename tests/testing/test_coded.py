"""What a simulated training with codecs of choice claims to check it does check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.testing.test_invariants import Patch, caught, wrap
from zmqps.core.server.aggregate import Stage
from zmqps.core.worker import choice, recuts
from zmqps.core.worker.choice import Choice
from zmqps.core.worker.packer import Packer
from zmqps.testing import Faults, Simulation
from zmqps.testing.coded import ALLOWED, CodedTraining
from zmqps.testing.scenarios import SCENARIOS

pytestmark = pytest.mark.repeats


def test_a_worker_that_forgets_what_a_codec_has_left_out_when_it_takes_another(monkeypatch: Patch) -> None:
    def without(original: Any, packer: Packer, cargo: Any, pieces: Any) -> Any:
        original(packer, cargo, pieces)
        return list(pieces)

    wrap(monkeypatch, Packer, "_with_left", without)
    caught("async-auto-loss", "is missing of what was pushed")


def test_a_worker_that_sends_what_was_left_out_again_and_again(monkeypatch: Patch) -> None:
    def kept(original: Any, packer: Packer, cargo: Any, pieces: Any) -> Any:
        before = packer.left_out.get(cargo.slice.index, np.zeros(0)).copy()
        found = original(packer, cargo, pieces)
        if before.size:
            packer.left_out[cargo.slice.index] = before
        return found

    wrap(monkeypatch, Packer, "_with_left", kept)
    caught("sync-auto-drops", "is missing of what was pushed")


def test_a_worker_that_sends_a_gradient_of_another_codec_when_it_is_asked_again(monkeypatch: Patch) -> None:
    def again(original: Any, packer: Packer, request: Any, source: Any) -> Any:
        request.encoded = None
        return original(packer, request, source)

    wrap(monkeypatch, Packer, "pack", again)
    caught("async-auto-loss", "is missing of what was pushed")


def test_a_worker_that_chooses_what_is_not_allowed(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Choice, "_change", lambda original, self, text: setattr(self, "codec", "onebit:block=1024"))
    monkeypatch.setattr(Choice, "took", lambda self, *a, **k: self._change("onebit:block=1024"))
    caught("async-auto-loss", "which is not allowed")


def test_a_worker_that_changes_its_codec_at_every_turn(monkeypatch: Patch) -> None:
    def took(original: Any, self: Choice, *arguments: Any, **options: Any) -> None:
        self._change("raw" if self.codec != "raw" else ALLOWED.allowed[0])

    wrap(monkeypatch, Choice, "took", took)
    caught("async-auto-loss", "has changed its codec")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("staleness", [None, 0])
def test_workers_of_one_job_choose_by_their_own_processors(seed: int, staleness: int | None) -> None:
    training = CodedTraining(staleness=staleness, bandwidths=(3e7,))
    simulation = Simulation(seed, 2, 4, Faults(), training, bandwidth=3e7)
    simulation.run()
    chosen: list[set[str]] = [set(), set()]
    for worker in simulation.workers:
        chosen[worker.number % 2] |= {link.timing.choice.codec for link in worker.machine.links.by_shard}
    assert chosen[0] == {"topk:fraction=0.05"}, "encodes quickly: the wire is what takes the time"
    assert not chosen[1] & {"topk:fraction=0.05"}, "does not know what that would cost it"
    assert choice.NUM_SAMPLES * 3 < training.steps


def test_a_worker_that_forgets_what_was_left_out_when_shards_are_cut_anew(monkeypatch: Patch) -> None:
    inherit = recuts._inherit

    def forgets(before: Any, *rest: Any) -> None:
        for link in before:
            link.packer.left_out.clear()
        inherit(before, *rest)

    monkeypatch.setattr(recuts, "_inherit", forgets)
    caught("async-auto-scales", "is missing of what was pushed")


def test_a_step_without_those_that_were_given_up_is_the_mean_of_the_others() -> None:
    report = SCENARIOS["sync-auto-twisted-freezes"].simulation(10047).run()
    assert report.outcomes["EvictedError"] == 2


def test_a_server_that_counts_those_that_were_given_up(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Stage, "mean", lambda original, *arguments, total=0: original(*arguments, total=max(total, 4)))
    caught("sync-auto-twisted-freezes", "is missing of what was pushed", begin=10047)
