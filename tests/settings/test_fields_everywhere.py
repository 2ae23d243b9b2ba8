"""One source of settings: an option declared once has its flag, variable, key, rows and a place in the document."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import zmqps
import zmqps.ray
from tests import options as documents
from tests.tables import for_each
from zmqps.cli.settings import flags_of, options_of, read_config
from zmqps.settings.cluster import ClusterSettings, LaunchSettings, RunSettings, UpSettings
from zmqps.settings.coordinator import CoordinatorSettings
from zmqps.settings.fields import Settings, nested, options, setting
from zmqps.settings.kinds import Choice
from zmqps.settings.server import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Coloured(ServerSettings):
    """A server with one option more."""

    colour: str = setting("blue", Choice(("blue", "green")), "What colour its lamp has.", see="operations.md#addresses")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lit(Settings):
    """A command that starts such servers."""

    server: Coloured = nested(Coloured)


def group() -> tuple[click.Group, list[Any]]:
    """Return a program of two commands, and what these are told."""
    told: list[Any] = []

    @click.command()
    @options_of(Coloured)
    def server(settings: Coloured) -> int:
        told.append(settings.colour)
        return 0

    @click.command()
    @options_of(Lit)
    def up(settings: Lit) -> int:
        told.append(settings.server.colour)
        return 0

    return click.Group(commands=[server, up], context_settings={"auto_envvar_prefix": "ZMQPS"}), told


@for_each("command, variable", [("server", "ZMQPS_SERVER_COLOUR"), ("up", "ZMQPS_UP_COLOUR"), ("up", "ZMQPS_COLOUR")])
def test_an_option_declared_once_is_a_flag_a_variable_and_a_key(tmp_path: Path, command: str, variable: str) -> None:
    program, told = group()
    file = tmp_path / "zmqps.toml"

    def run(*flags: str, config: str = "", **variables: str) -> Any:
        file.write_text(config)
        result = CliRunner().invoke(program, [command, *flags], env=variables, default_map=read_config(file, program))
        return told.pop() if told else result.output

    assert run() == "blue"
    assert run("--colour", "green") == "green"
    assert run(**{variable: "green"}) == "green"
    assert run(config='colour = "green"\n') == "green"
    assert run(config=f'[{command}]\ncolour = "green"\n') == "green"
    assert run("--colour=blue", config='colour = "green"\n', **{variable: "green"}) == "blue"
    assert "'red' is not one of 'blue', 'green'" in run("--colour", "red")
    assert "What colour its lamp has.  [default: blue]" in " ".join(run("--help").split()).replace(". [", ".  [")


def test_it_is_in_the_documents_in_the_example_file_and_in_what_a_node_is_told() -> None:
    program, _ = group()
    row = "| `--colour` | server, up | `blue` | What colour its lamp has. [More](#addresses) |"
    assert row in documents.table(program)
    assert '\n# What colour its lamp has.\ncolour = "blue"\n' in documents.example(program)
    green = Coloured(colour="green")
    assert flags_of(green) == ["--colour=green"]
    assert Coloured.from_document(green.document()) == green
    with pytest.raises(zmqps.ConfigurationError, match="colour must be one of blue, green, not 'red'"):
        Coloured.from_document({"colour": "red"})


# --- one name for one thing -----------------------------------------------------------------------

#: The groups of options of a `LocalCluster`, by its own.
GROUPS: dict[str, type[Settings]] = {
    "servers": zmqps.Servers, "saving": zmqps.Saving, "limits": zmqps.Limits, "watching": zmqps.Watching
}  # fmt: skip
#: What it has besides settings of its nodes.
OWN = {"security", "timeout", "directory"}
#: Settings of a cluster that have no use on one host, or end it before its `with` statement.
ELSEWHERE = {
    *("address", "advertise", "interface", "insecure", "name"),
    *("journal", "patience", "once", "restart_servers"),
}


def of_a_local_cluster() -> list[str]:
    """Return the options of a `LocalCluster`, each a group or one."""
    return list(inspect.signature(zmqps.LocalCluster).parameters)


def test_a_local_cluster_has_each_setting_of_a_cluster_under_its_name() -> None:
    """So one that is added to a group is an option of it, and another has to be an option of it or listed."""
    grouped = [option for struct in GROUPS.values() for option in options(struct)]
    here = {*of_a_local_cluster()} - OWN - {*GROUPS} | {"servers"}
    here |= {option.name for option in grouped} | {one.name for one in fields(zmqps.Security)} - {"token"}
    settings = {option.name: option.default for option in options(ClusterSettings)}
    assert here == settings.keys() - ELSEWHERE
    for option in grouped:
        assert option.default == settings[option.name], option.name
    for name, parameter in inspect.signature(zmqps.LocalCluster).parameters.items():
        assert name in {*OWN, *GROUPS} - {"servers"} or parameter.default == settings[name], name


def test_what_is_said_of_the_servers_of_a_cluster_reaches_each_of_them() -> None:
    assert {option.name for option in options(zmqps.Servers)} - {"servers_per_gpu"} <= {
        option.name for option in options(ServerSettings)
    }


@for_each("call", [zmqps.LocalCluster, zmqps.run, zmqps.ray.start])
def test_a_call_that_starts_a_cluster_has_ten_options_at_most(call: Any) -> None:
    assert len(inspect.signature(call).parameters) <= 10


def test_how_jobs_are_saved_has_the_names_of_the_flags() -> None:
    for option in options(zmqps.Saving):
        field = option.path[-1]
        assert option.name == (field if field.startswith(("checkpoint", "restore")) else f"checkpoint_{field}")


@for_each("cls", [zmqps.LocalCluster, *GROUPS.values()])
def test_the_docstring_explains_each_option(cls: Any) -> None:
    lines = (inspect.getdoc(cls) or "").splitlines()
    said = {name.strip() for line in lines if " : " in line for name in line.partition(" : ")[0].split(",")}
    assert {*inspect.signature(cls).parameters} <= said


@for_each("struct", [CoordinatorSettings, ServerSettings, UpSettings, RunSettings, LaunchSettings])
def test_an_option_means_the_same_for_all_commands(struct: type[Settings]) -> None:
    known = {option.name: option for option in options(ClusterSettings)}
    for option in options(struct):
        if option.name in known and option.name not in ("name", "address", "servers"):
            assert option.setting.kind == known[option.name].setting.kind
            assert option.default == known[option.name].default
