"""What a simulated training in codecs claims to check it does check."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.test_invariants import Patch, caught, wrap
from tests.simulator.scenarios import SCENARIOS
from zmqps.core.server.dense.aggregate import Stage
from zmqps.core.worker.layout import recuts
from zmqps.core.worker.transfer import Packer

pytestmark = pytest.mark.repeats


def test_a_worker_that_forgets_what_a_codec_has_left_out(monkeypatch: Patch) -> None:
    def without(original: Any, packer: Packer, cargo: Any) -> Any:
        packer.left_out.pop(cargo.slice.index, None)
        return original(packer, cargo)

    wrap(monkeypatch, Packer, "_residuals", without)
    caught("async-coded-loss", "is missing of what was pushed")


def test_a_worker_that_sends_what_was_left_out_again_and_again(monkeypatch: Patch) -> None:
    def kept(original: Any, packer: Packer, request: Any, codec: Any, source: Any, residuals: Any = None) -> Any:
        before = {number: left.copy() for number, left in packer.left_out.items()}
        found = original(packer, request, codec, source, residuals)
        packer.left_out |= before
        return found

    wrap(monkeypatch, Packer, "_encode", kept)
    caught("sync-coded-drops", "is missing of what was pushed")


def test_a_worker_that_encodes_anew_what_it_is_asked_for_again(monkeypatch: Patch) -> None:
    def again(original: Any, packer: Packer, request: Any, source: Any) -> Any:
        request.encoded = None
        return original(packer, request, source)

    wrap(monkeypatch, Packer, "pack", again)
    caught("async-coded-loss", "is missing of what was pushed")


def test_a_worker_that_forgets_what_was_left_out_when_shards_are_cut_anew(monkeypatch: Patch) -> None:
    inherit = recuts._inherit

    def forgets(before: Any, *rest: Any) -> None:
        for link in before:
            link.packer.left_out.clear()
        inherit(before, *rest)

    monkeypatch.setattr(recuts, "_inherit", forgets)
    caught("async-coded-scales", "is missing of what was pushed")


def test_a_step_without_those_that_were_given_up_is_the_mean_of_the_others() -> None:
    report = SCENARIOS["sync-coded-twisted-freezes"].simulation(73).run()
    assert report.outcomes["EvictedError"] == 2


def test_a_server_that_counts_those_that_were_given_up(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Stage, "mean", lambda original, *arguments, total=0: original(*arguments, total=max(total, 4)))
    caught("sync-coded-twisted-freezes", "is missing of what was pushed", begin=39)
