"""Flags, environment and file: who wins, and what is refused."""

from __future__ import annotations

import math
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.tables import for_each
from zmqps.cli.main import cli, run
from zmqps.cli.settings import Setting, Size, read_config
from zmqps.core.protocol import exits
from zmqps.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = [(name, p) for name, command in cli.commands.items() for p in command.params if isinstance(p, Setting)]

#: What has to be said beside options.
NEEDED = {"drain": ["server-0"], "follow": ["items"], "scale": ["--servers", "2"], "stack": ["worker-0"]}


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Parse a command line; return what the command was told."""

    def parse(*arguments: str) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for command in cli.commands.values():
            monkeypatch.setattr(command, "callback", lambda **values: told.update(values))
        assert run([*arguments, *NEEDED.get(arguments[-1], [])]) == exits.OK
        return told

    return parse


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(parsed, monkeypatch, tmp_path) -> None:
    file = tmp_path / "zmqps.toml"
    file.write_text("[coordinator]\nservers = 3\n")
    assert parsed("coordinator")["servers"] == 1
    assert parsed("--config", str(file), "coordinator")["servers"] == 3
    monkeypatch.setenv("ZMQPS_COORDINATOR_SERVERS", "4")
    assert parsed("--config", str(file), "coordinator")["servers"] == 4
    assert parsed("--config", str(file), "coordinator", "--servers", "5")["servers"] == 5


def test_a_variable_or_key_of_the_command_wins_over_the_shared_one(parsed, monkeypatch, tmp_path) -> None:
    file = tmp_path / "zmqps.toml"
    file.write_text('kernels = "numpy"\nservers = 2\n[up]\nservers = 3\n')
    monkeypatch.setenv("ZMQPS_CONFIG", str(file))
    assert parsed("server")["kernels"] == "numpy"
    assert parsed("coordinator")["servers"] == 2
    assert parsed("up")["servers"] == 3
    monkeypatch.setenv("ZMQPS_KERNELS", "numba")
    assert parsed("server")["kernels"] == "numba"
    monkeypatch.setenv("ZMQPS_SERVER_KERNELS", "numpy")
    assert parsed("server")["kernels"] == "numpy"
    assert parsed("up")["kernels"] == "numba"


def test_one_variable_names_the_coordinator_for_all_commands(parsed, monkeypatch) -> None:
    monkeypatch.setenv("ZMQPS_COORDINATOR", "tcp://127.0.0.1:7")
    assert parsed("server")["coordinator"] == parsed("status")["coordinator"] == "tcp://127.0.0.1:7"


def test_a_file_names_the_coordinator_for_all_commands_beside_what_is_for_its_own(parsed, tmp_path) -> None:
    file = tmp_path / "zmqps.toml"
    file.write_text('coordinator-endpoint = "tcp://10.0.0.7:5570"\n[coordinator]\nservers = 3\n')
    assert parsed("--config", str(file), "coordinator")["servers"] == 3
    for command in ("server", "status", "jobs", "placement"):
        assert parsed("--config", str(file), command)["coordinator"] == "tcp://10.0.0.7:5570"
    file.write_text('coordinator_endpoint = "tcp://10.0.0.7:5570"\n[server]\ncoordinator = "tcp://10.0.0.8:5570"\n')
    assert parsed("--config", str(file), "server")["coordinator"] == "tcp://10.0.0.8:5570"


def test_a_file_in_which_the_coordinators_endpoint_collides_with_its_table_says_what_to_write(tmp_path) -> None:
    file = tmp_path / "zmqps.toml"
    file.write_text('servers = 2\ncoordinator = "tcp://10.0.0.7:5570"\n\n[coordinator]\naddress = "tcp://*:5570"\n')
    with pytest.raises(ConfigurationError, match='write coordinator-endpoint = "tcp://HOST:PORT" at the top'):
        read_config(file, cli)
    file.write_text('coordinator = "tcp://10.0.0.7:5570"\nservers = 2\nservers = 3\n')
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_config(file, cli)


def test_an_address_to_bind_is_never_shared(parsed, monkeypatch) -> None:
    monkeypatch.setenv("ZMQPS_ADDRESS", "tcp://127.0.0.1:7")
    assert parsed("server")["address"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[coordinator]\nserver = 2\n", "unknown key 'coordinator.server'; did you mean 'servers'?"),
        ("heartbeat-timout = 2\n", "unknown key 'heartbeat-timout'; did you mean 'heartbeat-timeout'?"),
        ("[cordinator]\n", "unknown key 'cordinator'; did you mean 'coordinator'?"),
        (
            'address = "tcp://127.0.0.1:0"\n',
            "unknown key 'address'; it belongs in [up] or [run] or [coordinator] or [server]",
        ),
        ("[server]\nparent_fd = 3\n", "unknown key 'server.parent_fd'"),
        ("[server.kernels]\na = 1\n", "unknown key 'server.kernels'"),
        ("servers = \n", "cannot read"),
    ],
)
def test_a_key_nobody_knows_is_an_error_that_names_it(tmp_path, text, message) -> None:
    file = tmp_path / "zmqps.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_config(file, cli)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_one_line_and_exit_code_2(capsys) -> None:
    assert run(["--config", "/nowhere/zmqps.toml", "status"]) == exits.USAGE
    assert capsys.readouterr().err.startswith("zmqps: cannot read /nowhere/zmqps.toml")


def test_a_value_of_the_wrong_kind_is_a_usage_error(tmp_path, capsys) -> None:
    file = tmp_path / "zmqps.toml"
    file.write_text('[up]\nservers = "two"\n')
    assert run(["--config", str(file), "up"]) == exits.USAGE
    assert "--servers" in capsys.readouterr().err


@for_each("text, number", [("4096", 4096), (4096, 4096), ("1MiB", 1 << 20), ("512 KiB", 512 << 10), ("1.5MB", 1500000)])
def test_sizes_are_read_with_their_units(text, number) -> None:
    assert Size().convert(text, None, None) == number


@for_each("text", ["", "MiB", "1 parsec", "-1"])
def test_what_is_no_size_is_refused(text) -> None:
    with pytest.raises(click.BadParameter, match="is not a size"):
        Size().convert(text, None, None)


@for_each("name", cli.commands)
def test_the_example_file_says_the_defaults(parsed, name) -> None:
    path = ROOT / "deploy" / "cluster.toml"
    assert parsed("--config", str(path), name) == parsed(name)


@for_each("command", ["launch", "doctor"])
def test_hosts_may_say_how_many_servers_they_run(parsed, command: str) -> None:
    assert parsed(command, "-H", "a:1")["servers"] is None


def test_help_loads_neither_numpy_nor_zeromq() -> None:
    program = "import sys; from zmqps.cli.main import run; run(['--help']); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"numpy", "zmq", "numba", "rich", "asyncio"}.isdisjoint(result.stdout.splitlines()[-1].split())


def test_launch_explains_what_means_something_else_there() -> None:
    for command, said in (
        ("launch", ("[default: (as the hosts say, or 1)", "by default each cluster gets new ones", "Make no keys")),
        ("run", ("How many servers make the cluster", "by default, none", "zmqps run --keys keys")),
    ):
        text = " ".join(CliRunner().invoke(cli, [command, "--help"]).output.split())
        assert [words for words in said if words not in text] == []


def test_every_option_is_explained() -> None:
    for command in cli.commands.values():
        assert command.help
        for param in command.params:
            if isinstance(param, click.Option) and not param.hidden:
                assert param.help, f"{command.name} {param.opts}"


#: As a file may have them, of all types and none that any option takes for what it says.
STRANGE = [
    "nan", "inf", "-inf", "1e400", "[]", "[1, 2]", "[[1]]", "true", "false", '""', '"x"', '" "', '"nan"', '"1e400"',
    "9" * 400, "-1", "1.5", "1979-05-27", "07:32:00", r'"\u0000"', '"9"', "9",
]  # fmt: skip


def by_type() -> Iterator[Any]:
    """Yield every option of every command; every run tries one of each type, CI all of them."""
    had = set()
    for command, option in SETTINGS:
        facts = (type(option.type), option.type.name, option.multiple, option.is_flag)
        yield pytest.param(command, option, marks=[pytest.mark.repeats] if facts in had else [])
        had.add(facts)


@pytest.mark.parametrize(("command", "option"), [*by_type()], ids=lambda value: getattr(value, "name", value))
def test_whatever_a_file_says_is_taken_as_it_stands_or_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, option: Setting
) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(cli.commands[command], "callback", lambda **values: told.update(values))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "zmqps.toml"
    needed = [] if option.name == "servers" else NEEDED.get(command, [])  # else the flag would win
    for text in STRANGE:
        told.clear()
        file.write_text(f"[{command}]\n{option.name} = {text}\n")
        code = run(["--config", str(file), command, *needed])
        said = capsys.readouterr().err
        if code == exits.USAGE:
            assert max(option.opts, key=len) in said, (text, said)
            assert not told
            continue
        assert code == exits.OK
        value, meant = told[option.name or ""], tomllib.loads(f"x = {text}")["x"]
        if isinstance(value, bool):
            assert isinstance(meant, bool | str), (text, value)
        elif isinstance(value, int | float):
            assert isinstance(value, int) or math.isfinite(value), (text, value)
            assert isinstance(meant, str) or (value == meant and not isinstance(meant, bool)), (text, value)
        elif option.multiple:
            assert [*value] == (meant if isinstance(meant, list) else [meant]), (text, value)
            assert all(isinstance(one, str) for one in value), (text, value)
        else:
            assert isinstance(meant, str), (text, value)


@pytest.mark.parametrize("text", ["nan", "1e400", "[2]", "9" * 5000, "", "x"])
def test_a_flag_or_variable_that_is_no_number_is_refused_by_name(monkeypatch, capsys, text: str) -> None:
    assert run(["coordinator", "--heartbeat-timeout", text]) == exits.USAGE
    assert "--heartbeat-timeout" in capsys.readouterr().err
    if text:  # an empty variable is none
        monkeypatch.setenv("ZMQPS_HEARTBEAT_TIMEOUT", text)
        assert run(["coordinator"]) == exits.USAGE
        assert "--heartbeat-timeout" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["servers = " + "9" * 5000, "servers = " + "[" * 5000, "servers = {"])
def test_a_file_that_cannot_be_read_is_one_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "zmqps.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_config(file, cli)


@for_each("option", ["--servers", "--workers"])
@for_each("command", ["up", "coordinator"])
def test_a_number_of_hundreds_of_digits_is_refused_with_the_range(command: str, option: str) -> None:
    result = CliRunner().invoke(cli, [command, option, "9" * 400])
    assert result.exit_code == 2
    assert "1<=x<=65535" in result.output
