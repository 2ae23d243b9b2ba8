"""Numbers, sparklines and sentences of the live view."""

from __future__ import annotations

import math

from tests.top.views import HEALTH
from zmqps.top.model import health_sentence, number, sparkline


def test_numbers_take_few_characters() -> None:
    assert [number(x) for x in (None, 0.12345, 12345678.0, math.inf)] == ["", "0.1235", "1.2e+07", "inf"]
    assert [number(x) for x in (7.4512e-8, -12345678.0, math.nan)] == ["7.5e-08", "-1.2e+07", "nan"]


def test_a_sparkline_goes_from_the_least_to_the_most() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 20) == "▁▂▃▄▅▆▇█"
    assert sparkline([4, 2, 0], 20) == "█▅▁"


def test_a_sparkline_is_as_wide_as_it_may_be_and_leaves_out_what_is_no_number() -> None:
    drawn = sparkline([float(n) for n in range(1000)], 10)
    assert len(drawn) == 10
    assert drawn == "".join(sorted(drawn))
    assert sparkline([1.0, math.nan, None, 2.0, math.inf], 10) == "▁█"
    assert sparkline([3.0, 3.0], 10) == "▁▁"
    assert sparkline([], 10) == sparkline([1.0], 0) == ""


def test_a_health_check_in_a_sentence() -> None:
    assert health_sentence(HEALTH) == "worker 2 on host-a does not answer; the others do"
    well = {"nodes": HEALTH["nodes"][1:]}  # type: ignore[index]
    assert health_sentence(well) == "the one node answers, the slowest in 4.2 ms (worker 0)"
    assert health_sentence({"nodes": well["nodes"] * 2, "left_out": 3}).startswith("all 5 nodes answer, the slowest in")
    assert health_sentence({"nodes": HEALTH["nodes"][:1]}) == "worker 2 on host-a does not answer"  # type: ignore[index]
    assert health_sentence({"nodes": []}) == "only the coordinator is there"
