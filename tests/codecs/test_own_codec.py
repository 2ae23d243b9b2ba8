"""A user's own codec, in a package that is installed for processes: on workers and servers, or on workers alone."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import zmqps
from tests.imports import ROOT
from zmqps.codecs import registry
from zmqps.errors import CodecError, ConfigurationError
from zmqps.optim import sgd

pytestmark = pytest.mark.processes

#: The codec, the trial and the package of docs/codecs.md.
SOURCE, TRIAL, PROJECT = re.findall(r"```\w+\n(.*?)```", (ROOT / "docs/codecs.md").read_text(), re.DOTALL)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package for this process alone; return where it is."""
    project = tomllib.loads(PROJECT)
    (module,) = project["tool"]["setuptools"]["py-modules"]
    (tmp_path / f"{module}.py").write_text(SOURCE)
    about = tmp_path / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (declared,) = project["project"]["entry-points"]["zmqps.codecs"].items()
    (about / "entry_points.txt").write_text(f"[zmqps.codecs]\n{' = '.join(declared)}\n")
    monkeypatch.syspath_prepend(tmp_path)
    caches = registry.installed, registry._loaded, registry.parse
    for one in caches:
        one.cache_clear()
    yield tmp_path
    for one in caches:
        one.cache_clear()


def test_it_is_used_like_ours_where_servers_have_it_too(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{package}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    gradient = (np.arange(1000, dtype=np.float32) % 100 + np.float32(0.25)) / 8  # the codec rounds the quarter away
    with zmqps.LocalCluster(servers=2) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(
            {"w": np.zeros(1000, np.float32)},
            optimizer=sgd(1.0),
            mode="async",
            push_codec="eighths",
            pull_codec="eighths",
        )
        expected, before = -np.floor(gradient * 8) / 8, worker.statistics().bytes_sent
        np.testing.assert_array_equal(worker.push_pull({"w": gradient})["w"], expected)
        assert worker.statistics().bytes_sent - before == 1000, "a byte for each value"
        worker.push({"w": gradient}, codec="raw")
        np.testing.assert_array_equal(worker.pull(codec="raw")["w"], expected - gradient)
        with zmqps.connect(cluster.address, observer=True) as observer:  # as if the package were missing there
            monkeypatch.setattr(registry, "installed", dict)
            registry.parse.cache_clear()
            with pytest.raises(ConfigurationError, match="no codec 'eighths' here"):
                observer.pull()
            np.testing.assert_array_equal(observer.pull(codec="raw")["w"], expected - gradient)


def test_the_documents_trial_passes(package: Path) -> None:
    exec(TRIAL, {})


def test_one_that_fails_is_refused_with_its_exception(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{package}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    (package / "eighths.py").write_text(SOURCE.replace("x[i] = codes[i] / 8", "x[i] = codes[i] / eight"))
    with zmqps.LocalCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        with pytest.raises(CodecError, match=r"'eighths' cannot decode 4 values .*'eight' is not defined"):
            worker.init({"w": np.zeros(1000, np.float32)}, optimizer=sgd(1.0), mode="async", push_codec="eighths")


def test_a_server_that_lacks_it_refuses_the_job_and_says_what_to_install(package: Path) -> None:
    with zmqps.LocalCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        with pytest.raises(
            CodecError, match=r"no codec 'eighths' here; .*in group 'zmqps.codecs': install that package"
        ):
            worker.init({"w": np.zeros(1000, np.float32)}, optimizer=sgd(1.0), mode="async", push_codec="eighths")


def test_a_push_in_one_that_a_server_lacks_changes_nothing(package: Path) -> None:
    with zmqps.LocalCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init({"w": np.zeros(1000, np.float32)}, optimizer=sgd(1.0), mode="async")
        with pytest.raises(CodecError, match="no codec 'eighths' here"):
            worker.push({"w": np.ones(1000, np.float32)}, codec="eighths")
        assert not worker.pull()["w"].any()


def test_a_worker_that_lacks_it_cannot_name_it() -> None:
    with zmqps.LocalCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        with pytest.raises(ConfigurationError, match="no codec 'eighths' here; known are raw, bf16"):
            worker.init({"w": np.zeros(1000, np.float32)}, optimizer=sgd(1.0), mode="async", push_codec="eighths")
