"""What a cluster consists of."""

from __future__ import annotations

from typing import Any

from tests.tables import for_each
from zmqps.launch.config import ClusterConfig
from zmqps.settings.saving import Saving


@for_each(
    "options, checkpoints, outlives",
    [
        ({}, {}, False),
        ({"replicas": 1}, {}, True),
        ({}, {"checkpoint": "saved"}, True),
        ({}, {"restore": "saved"}, True),
        ({"fallback_timeout": 0.0}, {"checkpoint": "saved"}, False),
        ({"fallback_timeout": 0.0, "replicas": 1}, {"checkpoint": "saved"}, True),
    ],
)
def test_servers_start_again_where_jobs_go_on_without_them(
    options: dict[str, Any], checkpoints: dict[str, str], outlives: bool
) -> None:
    config = ClusterConfig(**options, saving=Saving(**checkpoints))
    assert config.outlives_servers is outlives
