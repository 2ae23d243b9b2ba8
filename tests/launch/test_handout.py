"""Which keys a host gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from zmqps.errors import ConfigurationError
from zmqps.keys import create, load_node_keys
from zmqps.launch.handout import FOR_NODES, FOR_WORKERS, key_files, write_files
from zmqps.net.keyring import Keys


@pytest.mark.parametrize("has_nodes", [True, False])
def test_a_host_without_nodes_gets_only_what_a_worker_shows(tmp_path: Path, has_nodes: bool) -> None:
    made = create(tmp_path / "made")
    write_files(tmp_path / "host", key_files(tmp_path / "made", has_nodes=has_nodes))
    workers = Keys.load(tmp_path / "host" / FOR_WORKERS)
    assert workers.cluster == made.cluster
    assert set(workers.pairs) == {"worker"}
    assert not workers.secret
    if has_nodes:
        nodes = load_node_keys(tmp_path / "host" / FOR_NODES)
        assert nodes is not None
        assert nodes.secret == made.secret
    else:
        with pytest.raises(ConfigurationError):
            load_node_keys(tmp_path / "host" / FOR_NODES)
