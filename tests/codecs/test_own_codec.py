"""A user's own codec, in a package that is installed for processes: on workers and servers, or on workers alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import zmqps
from zmqps.codecs import registry
from zmqps.errors import CodecError, ConfigurationError
from zmqps.optim import sgd

pytestmark = pytest.mark.processes

#: Whole numbers from -128 to 127, and options; numpy's way serves for numba as well, as no loop is large.
SOURCE = """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from zmqps.codecs import VALUES, CodecKernel, FixedWidthCodec


def encode_loop(x, out):
    for i in range(x.size):
        out[i] = np.int8(x[i])


def encode_numpy(xp, x, out):
    out[:] = x.astype(np.int8)


def decode_loop(codes, out):
    for i in range(out.size):
        out[i] = codes[i]


def decode_numpy(xp, codes, out):
    out[:] = codes


@dataclass(frozen=True)
class Whole(FixedWidthCodec):
    name: ClassVar[str] = "whole"
    portable: ClassVar[bool] = False
    encoder = CodecKernel(encode_loop, encode_numpy, reads=(VALUES,), writes=("i1",))
    decoder = CodecKernel(decode_loop, decode_numpy, reads=("i1",), writes=(VALUES,))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package for this process alone; return where it is."""
    (tmp_path / "whole_codec.py").write_text(SOURCE)
    about = tmp_path / "whole_codec-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: whole-codec\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[zmqps.codecs]\nwhole = whole_codec:Whole\n")
    monkeypatch.syspath_prepend(tmp_path)
    caches = registry.installed, registry._loaded, registry.parse
    for one in caches:
        one.cache_clear()
    yield tmp_path
    for one in caches:
        one.cache_clear()


def test_it_is_used_like_ours_where_servers_have_it_too(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{package}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    gradient = np.arange(1000, dtype=np.float32) % 100 + np.float32(0.25)  # which the codec does not keep
    with zmqps.LocalCluster(servers=2) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(
            {"w": np.zeros(1000, np.float32)}, optimizer=sgd(1.0), mode="async", push_codec="whole", pull_codec="whole"
        )
        expected, before = -np.floor(gradient), worker.statistics().bytes_sent
        np.testing.assert_array_equal(worker.push_pull({"w": gradient})["w"], expected)
        assert worker.statistics().bytes_sent - before == 1000, "a byte for each value"
        worker.push({"w": gradient}, codec="raw")
        np.testing.assert_array_equal(worker.pull(codec="raw")["w"], expected - gradient)
        with zmqps.connect(cluster.address, observer=True) as observer:  # as if the package were missing there
            monkeypatch.setattr(registry, "installed", dict)
            registry.parse.cache_clear()
            with pytest.raises(ConfigurationError, match="no codec 'whole' here"):
                observer.pull()
            np.testing.assert_array_equal(observer.pull(codec="raw")["w"], expected - gradient)


def test_a_server_that_lacks_it_refuses_the_job_and_says_what_to_install(package: Path) -> None:
    with zmqps.LocalCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        with pytest.raises(CodecError, match=r"no codec 'whole' here; .*in group 'zmqps.codecs': install that package"):
            worker.init({"w": np.zeros(1000, np.float32)}, optimizer=sgd(1.0), mode="async", push_codec="whole")


def test_a_push_in_one_that_a_server_lacks_changes_nothing(package: Path) -> None:
    with zmqps.LocalCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init({"w": np.zeros(1000, np.float32)}, optimizer=sgd(1.0), mode="async")
        with pytest.raises(CodecError, match="no codec 'whole' here"):
            worker.push({"w": np.ones(1000, np.float32)}, codec="whole")
        assert not worker.pull()["w"].any()


def test_a_worker_that_lacks_it_cannot_name_it() -> None:
    with zmqps.LocalCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        with pytest.raises(ConfigurationError, match="no codec 'whole' here; known are raw, bf16"):
            worker.init({"w": np.zeros(1000, np.float32)}, optimizer=sgd(1.0), mode="async", push_codec="whole")
