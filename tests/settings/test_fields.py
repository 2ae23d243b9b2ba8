"""Structs of settings: their options, and the documents that nodes get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tables import for_each
from zmqps.errors import ConfigurationError
from zmqps.settings.cluster import ClusterSettings, LaunchSettings, RunSettings, UpSettings
from zmqps.settings.coordinator import CoordinatorSettings
from zmqps.settings.fields import Settings, build, options
from zmqps.settings.saving import Saving
from zmqps.settings.server import ServerSettings

STRUCTS = (ServerSettings, CoordinatorSettings, ClusterSettings, UpSettings, RunSettings, LaunchSettings)

SERVER = ServerSettings(
    coordinator="tcp://10.0.0.1:5570", address="tcp://10.0.0.2:0", memory="8GB", keys="keys", index=3,  # type: ignore[arg-type]
    handover_timeout=5, spare=True,
)  # fmt: skip
COORDINATOR = CoordinatorSettings(
    servers=3, slice_size="1MiB", values=["jsonl:values"], journal="journal",  # type: ignore[arg-type]
    saving=Saving(checkpoint="runs", every="5min", restore_names={"w": "weight"}),
)  # fmt: skip


@for_each("told", [SERVER, COORDINATOR, ServerSettings(), CoordinatorSettings()])
def test_a_document_says_all_and_survives_json(told: Any) -> None:
    read = type(told).from_document(json.loads(json.dumps(told.document())))
    assert read.document() == told.document()
    assert type(told).from_document(told.document()) == read


def test_a_document_has_absolute_paths_and_plain_values() -> None:
    document = COORDINATOR.document()
    assert document["journal"] == str(Path.cwd() / "journal")
    assert document["values"] == (f"jsonl:{Path.cwd() / 'values'}",)
    assert document["saving"]["checkpoint"] == str(Path.cwd() / "runs")
    assert document["slice_size"] == 1 << 20
    assert SERVER.document()["memory"] == 8 * 10**9


@for_each(
    "document, said",
    [
        ({"adress": "x"}, "did you mean 'address'"), ({"io_threads": 65}, "io_threads"),
        ({"io_threads": None}, "io_threads"), ([], "settings"), (None, "settings"), ({"spare": "yes"}, "spare"),
    ],
)  # fmt: skip
def test_a_document_that_cannot_be_is_refused_by_name(document: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        ServerSettings.from_document(document)


def test_what_a_document_of_a_coordinator_says_of_saving_is_checked() -> None:
    with pytest.raises(ConfigurationError, match="checkpoint_keep"):
        CoordinatorSettings.from_document({"saving": {"keep": 0}})
    with pytest.raises(ConfigurationError, match="name a directory"):
        CoordinatorSettings.from_document({"saving": {"every": "5min"}})
    with pytest.raises(ConfigurationError, match="saving"):
        CoordinatorSettings(saving=5)  # type: ignore[arg-type]


@for_each("struct", STRUCTS)
def test_every_option_has_one_kind_and_a_help_and_its_default_is_one_of_its_values(struct: type[Settings]) -> None:
    kinds: dict[str, Any] = {}
    for option in options(struct):
        assert option.setting.help, option.name
        assert kinds.setdefault(option.name, option.setting.kind) == option.setting.kind
        if option.default is not None:
            assert option.setting.kind.check(option.name, option.default) == option.default
    assert struct() == build(struct, {}) == build(struct, {name: None for name in kinds})


def test_what_is_told_fills_the_fields_below() -> None:
    told = build(
        UpSettings, {"servers": 3, "kernels": "numpy", "checkpoint": "runs", "checkpoint_keep": 5, "name": "a"}
    )
    assert (told.cluster.servers, told.cluster.server.kernels, told.name) == (3, "numpy", "a")
    assert told.cluster.saving == Saving(checkpoint="runs", keep=5)
    assert told.cluster.name == ""
    with pytest.raises(ConfigurationError, match="restart_workers"):
        build(UpSettings, {"restart_workers": -1})


def test_settings_are_taken_from_a_struct_with_the_same_fields() -> None:
    cluster = ClusterSettings(servers=2, keys="keys", page="0")  # type: ignore[arg-type]
    told = CoordinatorSettings.taken_from(cluster, name="chief")
    assert (told.servers, told.keys, told.page, told.name) == (2, Path("keys"), "0", "chief")
    assert ServerSettings.taken_from(cluster).keys == Path("keys")
