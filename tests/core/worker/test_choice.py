"""Which codec gradients travel in: as times say, what is allowed only, and not another one at every turn."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from zmqps.codecs import auto, parse
from zmqps.core.worker.choice import FORGET_S, LEAST_NBYTES, NUM_SAMPLES, RETRY_S, Choice, Timing

NBYTES = 4 << 20
LOSSY = auto("bf16", "int8")
#: Seconds to encode and decode a byte of values, on a processor as they are.
INT8 = "int8:block=1024"
COSTS = {"bf16": 1e-10, INT8: 1.5e-10}


def nbytes_of(codec: str) -> int:
    return parse(codec).encoded_nbytes(NBYTES // 4, np.float32)


class World:
    """A wire and a server, and the clock."""

    def __init__(self, choice: Choice, wire: float, server: float = 0.0, noise: Callable[[], float] = lambda: 1.0):
        self.choice, self.wire, self.server, self.noise = choice, wire, server, noise
        self.now = 100.0
        self.used: list[str] = []

    def push(self, times: int = 1) -> str:
        for _ in range(times):
            codec = self.choice.codec
            wire = nbytes_of(codec) / self.wire
            seconds = (wire + NBYTES * (COSTS.get(codec, 0.0) + self.server)) * self.noise()
            self.now += seconds
            self.used.append(codec)
            self.choice.took(codec, NBYTES, nbytes_of(codec), seconds, self.now)
        return self.choice.codec


@pytest.mark.parametrize(
    ("wire", "codec"), [(12.5e6, INT8), (125e6, INT8), (1.25e9, INT8), (20e9, "raw")], ids=lambda x: str(x)
)
def test_a_slow_wire_gets_few_bytes_and_a_fast_one_what_is_exact(wire: float, codec: str) -> None:
    world = World(Choice(LOSSY, COSTS.get), wire)
    assert world.push(10 * NUM_SAMPLES) == codec
    assert world.choice.changes <= 2


def test_of_codecs_that_are_about_as_fast_the_one_allowed_first_is_chosen() -> None:
    assert World(Choice(auto("bf16", "fp16"), lambda codec: 1e-10), 1e8).push(40) == "bf16"
    assert World(Choice(auto("fp16", "bf16"), lambda codec: 1e-10), 1e8).push(40) == "fp16"


def test_what_is_not_allowed_is_never_chosen() -> None:
    world = World(Choice(auto(), COSTS.get), 1e6)
    world.push(50)
    assert set(world.used) == {"raw"}
    world = World(Choice(auto("bf16"), COSTS.get), 1e6)
    world.push(50)
    assert set(world.used) == {"raw", "bf16"}


def test_nothing_is_chosen_before_its_cost_is_known() -> None:
    costs: dict[str, float] = {}
    world = World(Choice(LOSSY, costs.get), 1e7)
    assert world.push(50) == "raw"
    costs["bf16"] = COSTS["bf16"]
    assert world.push(NUM_SAMPLES) == "bf16"


def test_a_slow_processor_sends_more_bytes() -> None:
    slow = {"bf16": 4e-9, INT8: 40e-9}
    choice = Choice(LOSSY, slow.get)
    for _ in range(40):
        codec = choice.codec
        seconds = nbytes_of(codec) / 125e6 + NBYTES * slow.get(codec, 0.0)
        choice.took(codec, NBYTES, nbytes_of(codec), seconds, 1.0)
    assert choice.codec == "raw"  # bf16 takes as long, all in all


def test_a_change_that_makes_nothing_faster_is_taken_back_and_seldom_tried_again() -> None:
    world = World(Choice(LOSSY, COSTS.get), 50e9, server=2e-8)  # it is the server that is slow
    world.push(NUM_SAMPLES)
    assert world.choice.codec != "raw"  # as if it were the wire
    world.push(2 * NUM_SAMPLES)
    began_at, world.used = world.now, []
    while world.now < began_at + 10 * RETRY_S:
        world.push()
    lossy = sum(codec != "raw" for codec in world.used)
    assert lossy <= 10 * NUM_SAMPLES < len(world.used) / 50
    assert world.choice.codec == "raw"


def test_a_wire_that_becomes_slow_is_noticed_also_after_a_change_in_vain() -> None:
    world = World(Choice(LOSSY, COSTS.get), 50e9, server=2e-8)
    world.push(3 * NUM_SAMPLES)
    world.wire = 12.5e6
    assert world.push(6 * NUM_SAMPLES) == INT8


def test_a_wire_that_becomes_fast_is_noticed() -> None:
    world = World(Choice(LOSSY, COSTS.get), 12.5e6)
    assert world.push(20) == INT8
    world.wire = 40e9
    world.push(NUM_SAMPLES)
    world.now += FORGET_S
    assert world.push(3 * NUM_SAMPLES) == "raw"


@pytest.mark.parametrize("wire", [1.25e7, 1.25e8, 1.25e9, 6e9, 20e9])
@pytest.mark.parametrize("seed", range(4))
def test_noise_makes_few_changes(wire: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = World(Choice(LOSSY, COSTS.get), wire, server=1e-10, noise=lambda: float(np.exp(rng.normal(0.0, 0.3))))
    world.push(1000)
    assert world.choice.changes <= 20


def test_through_memory_gradients_are_not_encoded() -> None:
    world = World(Choice(LOSSY, COSTS.get), 12.5e6)
    assert world.push(20) == INT8
    world.choice.took(INT8, NBYTES, NBYTES // 4, 0.1, world.now, in_memory=True)
    assert world.choice.codec == "raw"
    assert str(world.choice) == "raw (through memory)"
    for _ in range(20):
        world.choice.took("raw", NBYTES, NBYTES, 0.1, world.now, in_memory=True)
    assert world.choice.codec == "raw"


def test_small_pushes_say_nothing() -> None:
    choice = Choice(LOSSY, COSTS.get)
    for _ in range(20):
        choice.took("raw", LEAST_NBYTES - 1, LEAST_NBYTES - 1, 1.0, 1.0)
    assert choice.codec == "raw"
    assert "not measured" in str(choice)


def test_another_server_is_measured_anew() -> None:
    world = World(Choice(LOSSY, COSTS.get), 12.5e6)
    world.push(20)
    world.choice.begin_anew()
    assert "not measured" in str(world.choice)


def test_it_says_what_is_in_force_and_why() -> None:
    world = World(Choice(LOSSY, COSTS.get), 12.5e6)
    world.push(20)
    assert str(world.choice) == "int8:block=1024 (wire 12 MB/s, bf16 10,000 MB/s, int8:block=1024 6,667 MB/s)"
    assert "nothing else is allowed" in str(Choice(auto(), COSTS.get))


@hypothesis.given(
    st.lists(st.tuples(st.floats(1e-4, 1e3), st.floats(0.0, 1e4), st.booleans(), st.integers(1, 1 << 24)), max_size=120)
)
def test_whatever_times_are_the_codec_is_an_allowed_one_and_kept_for_some_pushes(found) -> None:
    choice, now, kept = Choice(LOSSY, COSTS.get), 0.0, 0
    for seconds, later, in_memory, nbytes in found:
        before, changes = choice.codec, choice.changes
        now += later
        choice.took(before, nbytes, nbytes_of(before) * nbytes // NBYTES, seconds, now, in_memory=in_memory)
        assert choice.codec in ("raw", *LOSSY.allowed)
        assert in_memory <= (choice.codec == "raw")
        kept = 0 if choice.changes > changes else kept + 1
        assert choice.changes == changes or in_memory or before != choice.codec
        str(choice)


# --- the time of a push -------------------------------------------------------------------------


class Told(Choice):
    def __init__(self) -> None:
        super().__init__(LOSSY, COSTS.get)
        self.told: list[tuple[str, int, int, float]] = []

    def took(self, codec, nbytes, sent_nbytes, seconds, now, *, in_memory=False) -> None:
        self.told.append((codec, nbytes, sent_nbytes, seconds))


def test_a_push_takes_from_its_first_message_to_its_last_answer() -> None:
    timing = Timing(told := Told())
    timing.expect("push", 1000, 2)
    timing.left("push", 100, 5.0)
    timing.left("push", 50, 6.0)
    timing.answered("push", 7.0)
    assert told.told == []
    timing.answered("push", 9.0)
    assert told.told == [("raw", 1000, 150, 4.0)]


def test_a_push_behind_another_one_takes_from_when_that_is_done() -> None:
    timing = Timing(told := Told())
    for name in "ab":
        timing.expect(name, 1000, 1)
        timing.left(name, 1000, 1.0)
    timing.answered("a", 3.0)
    timing.answered("b", 4.0)
    assert [seconds for *_, seconds in told.told] == [2.0, 1.0]


def test_what_is_sent_again_is_not_counted() -> None:
    timing = Timing(told := Told())
    timing.expect("push", 1000, 1)
    timing.left("push", 0, 1.0)
    timing.spoil()
    timing.answered("push", 3.0)
    timing.answered("unknown", 3.0)
    assert told.told == []


def test_pushes_that_never_end_are_forgotten() -> None:
    timing = Timing(told := Told())
    for number in range(3 * Timing.MOST):
        timing.expect(number, 1000, 1)
    for number in range(3 * Timing.MOST):
        timing.left(number, 0, 1.0)
        timing.answered(number, 2.0)
    assert len(told.told) == Timing.MOST
