"""How much memory there is: of the host, or of the container, whichever has less."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import psutil
import pytest

from zmqps.net.system import memory


def test_without_a_container_it_is_the_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "CGROUP_USES", tmp_path / "none")
    monkeypatch.setattr(memory, "CGROUP_LIMIT", tmp_path / "none")
    assert 0 < memory.available_nbytes() <= memory.total_nbytes() == psutil.virtual_memory().total


def test_in_a_container_it_is_what_that_may_still_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in {
        "LIMIT": "3000000\n", "USED": "2500000\n", "USES": "anon 5\ninactive_file 100000\nslab_reclaimable 7\n",
    }.items():  # fmt: skip
        path = tmp_path / name
        path.write_text(text)
        monkeypatch.setattr(memory, f"CGROUP_{name}", path)
    assert memory.available_nbytes() == 500_000 + 100_000 + 7
    assert memory.total_nbytes() == 3_000_000
    (tmp_path / "LIMIT").write_text("max\n")
    assert memory.total_nbytes() == psutil.virtual_memory().total


def test_while_descriptors_are_short_it_is_what_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def short() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for name in ("CGROUP_USES", "CGROUP_LIMIT"):
        monkeypatch.setattr(memory, name, tmp_path / "none")
    known = memory.available_nbytes(), memory.total_nbytes()
    monkeypatch.setattr(psutil, "virtual_memory", short)
    assert (memory.available_nbytes(), memory.total_nbytes()) == known
    monkeypatch.setattr(memory, "_said", {})
    with pytest.raises(OSError, match="open files"):
        memory.available_nbytes()
