"""What a cluster consists of."""

from __future__ import annotations

from typing import Any

from tests.tables import for_each
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.launch.config import ClusterConfig
from zmqps.nodes.checkpoints import CheckpointConfig


@for_each(
    "options, checkpoints, outlives",
    [
        ({}, {}, False),
        ({"replicas": 1}, {}, True),
        ({}, {"directory": "saved"}, True),
        ({}, {"restore": "saved"}, True),
        ({"fallback_timeout": 0.0}, {"directory": "saved"}, False),
        ({"fallback_timeout": 0.0, "replicas": 1}, {"directory": "saved"}, True),
    ],
)
def test_servers_start_again_where_jobs_go_on_without_them(
    options: dict[str, Any], checkpoints: dict[str, str], outlives: bool
) -> None:
    config = ClusterConfig(options=CoordinatorOptions(**options), checkpoints=CheckpointConfig(**checkpoints))
    assert config.outlives_servers is outlives
