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
from tests import options as documents
from tests.tables import for_each
from zmqps.cli.settings import flags_of, options_of, read_config
from zmqps.settings.cluster import ClusterSettings, LaunchSettings, RunSettings, UpSettings
from zmqps.settings.coordinator import CoordinatorSettings
from zmqps.settings.fields import Settings, nested, options, setting
from zmqps.settings.kinds import Choice
from zmqps.settings.saving import Saving
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

#: What a `LocalCluster` has beside settings of its nodes, and what it says in other words.
OWN = {"saving", "servers_per_gpu", "timeout", "directory"}


def test_options_of_a_local_cluster_have_the_names_and_defaults_of_the_flags() -> None:
    settings = {option.name: option.default for option in options(ClusterSettings)}
    settings |= {option.name: option.default for option in options(UpSettings) if option.name in OWN - {"directory"}}
    for name, parameter in list(inspect.signature(zmqps.LocalCluster.__init__).parameters.items())[1:]:
        if name in OWN:
            continue
        assert name in settings
        assert parameter.default == settings[name], name


def test_how_jobs_are_saved_has_the_names_of_the_flags() -> None:
    for option in options(Saving):
        field = option.path[-1]
        assert option.name == (field if field.startswith("restore") else f"checkpoint_{field}")


def test_the_docstrings_of_local_cluster_and_saving_explain_each_option() -> None:
    for cls, names in ((zmqps.LocalCluster, inspect.signature(zmqps.LocalCluster.__init__).parameters),
                       (Saving, [one.name for one in fields(Saving)])):  # fmt: skip
        lines = (inspect.getdoc(cls) or "").splitlines()
        said = {name.strip() for line in lines if " : " in line for name in line.partition(" : ")[0].split(",")}
        assert {*names} - {"self"} <= said


@for_each("struct", [CoordinatorSettings, ServerSettings, UpSettings, RunSettings, LaunchSettings])
def test_an_option_means_the_same_for_all_commands(struct: type[Settings]) -> None:
    known = {option.name: option for option in options(ClusterSettings)}
    for option in options(struct):
        if option.name in known and option.name not in ("name", "address", "servers"):
            assert option.setting.kind == known[option.name].setting.kind
            assert option.default == known[option.name].default
