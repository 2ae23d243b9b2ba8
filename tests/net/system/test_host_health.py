"""How a process is: figures that grow, and the longest of something since it was told last."""

from __future__ import annotations

import gc

from zmqps.net.system.host import Health, resident_nbytes


def test_a_process_tells_what_it_uses_of_its_host() -> None:
    health = Health()
    facts = health.facts()
    assert facts["cpu_seconds"] > 0
    assert facts["rss_nbytes"] > 1 << 20
    assert resident_nbytes() % 4096 == 0


def test_the_loop_s_lag_is_summed_and_its_longest_told_once() -> None:
    health = Health()
    health.late(0.25)
    health.late(0.5)
    assert (health.facts()["loop_lag_seconds"], health.facts()["loop_lag_max_s"]) == (0.75, 0.5)
    health.told()
    assert (health.facts()["loop_lag_seconds"], health.facts()["loop_lag_max_s"]) == (0.75, 0.0)


def test_collections_are_counted_while_it_looks() -> None:
    health, before = Health(), len(gc.callbacks)
    health.start()
    gc.collect()
    health.stop()
    gc.collect()
    facts = health.facts()
    assert facts["gc_pauses"] == 1
    assert 0 < facts["gc_pause_max_s"] <= facts["gc_pause_seconds"]
    assert len(gc.callbacks) == before
    health.stop()  # once more is no harm
