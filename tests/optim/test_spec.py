"""Specs as data: groups, the wire form, and that whatever a peer sends is a spec or an OptimizerError."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.optim.specs import SPECS
from tests.tables import for_each
from zmqps import optim
from zmqps.errors import OptimizerError
from zmqps.optim import OptimizerSpec, group

# --- groups -------------------------------------------------------------------------------------


def test_the_first_matching_group_wins_and_equal_rules_are_one() -> None:
    spec = optim.adamw(
        0.1,
        weight_decay=0.5,
        groups=[
            group("encoder.*.bias", learning_rate=0.2),
            group("*.bias", weight_decay=0.0),
            group("encoder.*", weight_decay=0.5),  # changes nothing
            group("embedding", frozen=True),
        ],
    )
    rules, indices = spec.rules(["head.w", "encoder.0.bias", "head.bias", "encoder.0.w", "embedding", "x.bias"])
    assert indices == [0, 1, 2, 0, 3, 2]
    assert [(r.learning_rate, r.weight_decay, r.frozen) for r in rules] == [
        (0.1, 0.5, False),
        (0.2, 0.5, False),
        (0.1, 0.0, False),
        (0.1, 0.5, True),
    ]


def test_all_rules_of_a_spec_have_the_same_slots() -> None:
    for spec in SPECS.values():
        groups = (group("a", learning_rate=0.5, weight_decay=0.7), group("b", frozen=True))
        rules, indices = replace(spec, groups=groups).rules(["a", "b", "c"])
        assert indices == [1, 2, 0]
        assert len({(r.slots, r.slot_fill) for r in rules}) == 1


def test_no_parameters_need_no_rules() -> None:
    assert optim.sgd().rules([]) == ((), [])


def test_patterns_see_the_whole_name_and_its_case() -> None:
    _, indices = optim.sgd(groups=[group("a?[xy]", frozen=True)]).rules(["abx", "aBy", "Abx", "abxx", "abz"])
    assert indices == [1, 1, 0, 0, 0]


def test_names_are_exact_whatever_is_in_them() -> None:
    spec = optim.sgd(groups=[group(names=["layers[0]", "a*"], frozen=True), group("layers*", weight_decay=0.5)])
    rules, indices = spec.rules(["layers[0]", "layers0", "a*", "ab"])
    assert [(rules[i].frozen, rules[i].weight_decay) for i in indices] == [
        (True, 0),
        (False, 0.5),
        (True, 0),
        (False, 0),
    ]


def test_a_pattern_that_comes_first_wins_over_names() -> None:
    spec = optim.sgd(groups=[group("w*", weight_decay=0.5), group(names=["w1", "x"], frozen=True)])
    rules, indices = spec.rules(["w1", "x"])
    assert [rules[i].frozen for i in indices] == [False, True]


def test_a_model_may_have_a_group_for_each_of_thousands_of_parameters() -> None:
    names = [f"w{i}" for i in range(5000)]
    spec = optim.sgd(0.5, groups=[group(names=[name], learning_rate=1 / (i + 3)) for i, name in enumerate(names)])
    rules, indices = OptimizerSpec.from_wire(spec.to_wire()).rules([*names, "other"])
    assert [rules[i].learning_rate for i in indices] == [*(1 / (i + 3) for i in range(5000)), 0.5]


def test_what_is_trained_is_all_that_is_not_frozen() -> None:
    groups = [group("w1", weight_decay=0.1), group("w*", frozen=True), group(names=["x"], frozen=True)]
    assert optim.trained(optim.sgd(groups=groups).to_wire(), ["w1", "w2", "x", "y"]) == ["w1", "y"]
    assert optim.trained(optim.sgd().to_wire(), ["w1"]) == ["w1"]


def test_a_group_that_is_meant_for_nothing_is_found() -> None:
    names = ["w[0]", "w[1]", "b"]
    assert optim.unused([group("w*"), group(names=["b"])], names) is None
    assert optim.unused([group("b"), group("w[0]")], names) == ("w[0]", True)
    assert optim.unused([group(names=["b", "c"])], names) == ("c", False)


def received(name: str, hyper: dict[str, object]) -> OptimizerSpec:
    """Return a spec of a peer with these hyperparameters."""
    return OptimizerSpec.from_wire(optim.sgd().to_wire() | {"name": name, "hyper": hyper})


# --- what a script may not say ------------------------------------------------------------------


@for_each(
    "make, text",
    [
        (lambda: optim.adam(b1=1.0), "adam: b1 must be a finite number at least 0 and below 1, not 1.0"),
        (lambda: optim.adam(-1e-3), "learning_rate must be a finite number at least 0"),
        (lambda: optim.adam(math.inf), "learning_rate must be .* not inf"),
        (lambda: optim.adam(eps="small"), "eps must be .* not 'small'"),
        (lambda: optim.rmsprop(centered=1), "centered must be True or False, not 1"),
        (lambda: optim.sgd(clip_value=0.0), "clip_value must be a finite number above 0"),
        (lambda: optim.sgd(weight_decay=10**400), "weight_decay must be a finite number"),
        (
            lambda: optim.ftrl(optim.cosine_decay(0.1, decay_steps=5)),
            "ftrl: learning_rate must be a finite number above 0",
        ),
        (lambda: optim.ftrl(groups=[group("*", learning_rate=0.0)]), "ftrl: learning_rate must be .* above 0"),
        (lambda: optim.sgd(groups=[{"pattern": "*"}, 3]), "made by zmqps.optim.group, not 3"),
        (lambda: optim.sgd(groups="*.bias"), "groups must be a sequence"),
        (lambda: optim.sgd(nesterov=True), "nesterov=True needs momentum above 0, such as momentum=0.9"),
        (lambda: optim.sgd(nesterov=True, momentum=0.9, dampening=0.1), "takes no dampening: leave out dampening"),
        (lambda: optim.sgd(nesterov=True, momentum=0.9, groups=[group("*", dampening=0.1)]), "takes no dampening"),
        (lambda: group(), "group: give a pattern"),
        (lambda: group("*", names=["w"]), "not both"),
        (lambda: group(names="w"), "group: names must be names, .* not 'w'"),
        (lambda: group(names=[]), "group: names must be names"),
        (lambda: group(names=["w", 3]), "group: names must be names"),
        (lambda: group(""), "group: pattern must be a string of 1 to 1024 characters"),
        (lambda: group("*", weight_decay=-1.0), "group: weight_decay must be a finite number at least 0"),
        (
            lambda: received("sgd", {"b1": 0.9}),
            "sgd has no option 'b1'; its options are dampening, momentum, nesterov, weight_decay",
        ),
        (lambda: received("sgd", {"learning_rate": 0.5}), "sgd has no option 'learning_rate'"),
        (lambda: received("sgd", {"clip_norm": 1.0}), "sgd has no option 'clip_norm'"),
        (lambda: received("sgd", {"frozen": True}), "sgd has no option 'frozen'"),
        (lambda: received("s" * 101, {}), "name must be a string of 1 to 100 characters"),
    ],
)
def test_a_wrong_option_is_refused_with_what_would_be_right(make, text: str) -> None:
    with pytest.raises(OptimizerError, match=text):
        make()


# --- the wire -----------------------------------------------------------------------------------

SMALL = st.floats(0.0, 1e3, width=32)
UNIT = st.floats(0.0, 1.0, exclude_min=True, exclude_max=True)
COUNT = st.integers(1, 10**9)
DECAYS = st.one_of(
    st.builds(optim.constant, SMALL),
    st.builds(optim.step_decay, SMALL, every=COUNT, factor=UNIT),
    st.builds(optim.exponential_decay, SMALL, decay_rate=UNIT, transition_steps=COUNT),
    st.builds(optim.cosine_decay, SMALL, decay_steps=COUNT, end_value=SMALL),
    st.builds(optim.linear_decay, SMALL, decay_steps=COUNT, end_value=SMALL),
    st.builds(optim.polynomial_decay, SMALL, decay_steps=COUNT, power=st.floats(0.1, 9.0), end_value=SMALL),
    st.builds(
        optim.one_cycle, SMALL, total_steps=COUNT.filter(lambda n: n > 1), warmup_fraction=UNIT, linear=st.booleans()
    ),
    st.builds(optim.piecewise, SMALL, st.dictionaries(COUNT, SMALL, min_size=1, max_size=4)),
)
RATES = SMALL | DECAYS | st.builds(optim.linear_warmup, SMALL | DECAYS, warmup_steps=COUNT, init_value=SMALL)
GROUPS = st.lists(
    st.builds(
        group,
        st.text(min_size=1, max_size=20),
        learning_rate=st.none() | RATES,
        weight_decay=st.none() | SMALL,
        frozen=st.booleans(),
    ),
    max_size=3,
)
CLIPS = st.none() | st.floats(1e-3, 1e3)
COMMON = {"weight_decay": SMALL, "clip_value": CLIPS, "groups": GROUPS}
VALID = st.one_of(
    st.builds(optim.sgd, RATES, **COMMON),
    st.builds(optim.sgd, RATES, momentum=UNIT, dampening=UNIT, **COMMON),
    st.builds(optim.rmsprop, RATES, momentum=st.just(0.0) | UNIT, centered=st.booleans(), **COMMON),
    st.builds(optim.adamw, RATES, b1=UNIT, b2=UNIT, eps=SMALL, **COMMON),
)


@given(VALID, st.lists(st.text(max_size=10), max_size=5))
def test_a_spec_comes_back_from_the_wire_as_it_was(spec: OptimizerSpec, names: list[str]) -> None:
    received = OptimizerSpec.from_wire(msgpack.unpackb(msgpack.packb(spec.to_wire())))
    assert received == spec
    assert received.to_wire() == spec.to_wire()
    assert received.rules(names) == spec.rules(names)


def test_every_optimizer_travels() -> None:
    assert {name: OptimizerSpec.from_wire(spec.to_wire()) for name, spec in SPECS.items()} == SPECS


def test_options_that_a_peer_leaves_out_have_their_defaults() -> None:
    assert received("adam", {"b1": 0.8}) == optim.adam(b1=0.8)
    assert received("rmsprop", {"centered": False}) == optim.rmsprop(1e-3)


def test_an_unknown_optimizer_is_refused_with_the_known_ones() -> None:
    wire = optim.sgd().to_wire() | {"name": "sdg"}
    with pytest.raises(OptimizerError, match=r"no optimizer named 'sdg'; known here are .*adam, .*sgd"):
        OptimizerSpec.from_wire(wire)


def test_an_unknown_schedule_is_refused_with_the_known_ones() -> None:
    wire = optim.sgd().to_wire() | {"learning_rate": {"schedule": "cosine", "init_value": 1.0}}
    with pytest.raises(OptimizerError, match=r"no schedule 'cosine'; there are constant, .*cosine_decay"):
        OptimizerSpec.from_wire(wire)


def test_nested_warm_ups_are_refused_before_they_can_exhaust_the_stack() -> None:
    rate: object = 0.1
    for _ in range(100_000):
        rate = {"schedule": "linear_warmup", "then": rate, "warmup_steps": 1, "init_value": 0.0}
    with pytest.raises(OptimizerError, match="cannot itself be a linear_warmup"):
        OptimizerSpec.from_wire(optim.sgd().to_wire() | {"learning_rate": rate})


def test_more_groups_or_options_than_anybody_needs_are_refused() -> None:
    wire = optim.sgd().to_wire()
    with pytest.raises(OptimizerError, match="at most 256 patterns, not 257"):
        OptimizerSpec.from_wire(wire | {"groups": [group("*").to_wire()] * 257})
    with pytest.raises(OptimizerError, match="at most 65536 groups"):
        OptimizerSpec.from_wire(wire | {"groups": [group(names=["w"]).to_wire()] * 65537})
    with pytest.raises(OptimizerError, match="at most 64 entries"):
        OptimizerSpec.from_wire(wire | {"hyper": {f"b{i}": 0.1 for i in range(65)}})


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=9)
)
KEYS = SCALARS | st.sampled_from(["name", "hyper", "learning_rate", "groups", "pattern", "schedule", "b1", "then"])
JUNK = st.recursive(
    SCALARS | st.sampled_from(["adam", "sgd", "ftrl", "cosine_decay", "linear_warmup"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def accepts_or_refuses(wire: object) -> None:
    with contextlib.suppress(OptimizerError):
        spec = OptimizerSpec.from_wire(wire)
        assert OptimizerSpec.from_wire(msgpack.unpackb(msgpack.packb(spec.to_wire()))) == spec
        spec.rules(["w"])


@given(JUNK)
def test_junk_is_refused(wire: object) -> None:
    accepts_or_refuses(wire)


@given(VALID, st.sampled_from(["name", "hyper", "learning_rate", "clip_value", "groups"]), JUNK)
def test_junk_inside_a_spec_is_refused(spec: OptimizerSpec, key: str, junk: object) -> None:
    accepts_or_refuses(spec.to_wire() | {key: junk})


@given(st.sampled_from(list(SPECS.values())), st.data())
def test_junk_in_place_of_a_number_is_refused(spec: OptimizerSpec, data: st.DataObject) -> None:
    wire = spec.to_wire()
    key = data.draw(st.sampled_from(sorted(wire["hyper"])))
    accepts_or_refuses(wire | {"hyper": wire["hyper"] | {key: data.draw(JUNK)}})


@given(data=st.data())
def test_junk_inside_a_schedule_or_group_is_refused(data: st.DataObject) -> None:
    rate = data.draw(DECAYS).to_wire()
    rate[data.draw(st.sampled_from(sorted(rate)))] = data.draw(JUNK)
    entry = group("*").to_wire()
    entry[data.draw(st.sampled_from(sorted(entry)))] = data.draw(JUNK | st.just(rate))
    accepts_or_refuses(optim.sgd().to_wire() | {"learning_rate": rate})
    accepts_or_refuses(optim.sgd().to_wire() | {"groups": [entry]})


@given(st.text("ab*?[]!-\\^", max_size=30), st.text("ab[]", max_size=30))
def test_any_pattern_can_be_matched(pattern: str, name: str) -> None:
    if pattern:
        optim.sgd(groups=[group(pattern)]).rules([name])


def test_a_spec_of_before_there_were_its_flags_is_that_of_now() -> None:
    for made in (optim.adam(), optim.adamw(), optim.amsgrad(), optim.adagrad(), optim.rmsprop()):
        assert not {"eps_hat", "eps_in_sqrt"} & made.to_wire()["hyper"].keys()
        assert not any(getattr(rule, "eps_hat", False) for rule in made.rules(["w"])[0])
    assert optim.adam(eps_hat=True) != optim.adam(eps_hat=False) == optim.adam()
    with pytest.raises(OptimizerError, match="eps_hat"):
        optim.adam(eps_hat=0)  # type: ignore[arg-type]
