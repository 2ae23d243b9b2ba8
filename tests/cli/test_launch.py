"""``zmqps launch`` over a stand-in for ssh and a real sshd on loopback: whole clusters, to when nothing is left."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import click
import psutil
import pytest

import zmqps
from tests import hosts
from tests.cli.test_run import UNSAVED
from tests.leaks import assert_gone
from tests.pace import allow
from tests.tables import for_each
from zmqps import keys
from zmqps.cli.main import run
from zmqps.cli.running.state import state_path
from zmqps.core.protocol import exits
from zmqps.errors import KeyRefusedError
from zmqps.launch import code

PATIENCE = allow(30.0)
TWO = ("-H", "127.0.0.11:2,127.0.0.12:2")


@pytest.fixture
def ssh(tmp_path: Path) -> tuple[str, ...]:
    return "launch", "--ssh", hosts.stand_in(tmp_path), "--kernels", "numpy"


def everything_of(launcher: int) -> list[psutil.Process]:
    parent = psutil.Process(launcher)
    return [parent, *parent.children(recursive=True)]


@for_each(
    "arguments, says",
    [
        (("--", "true"), "say which hosts"),
        (("-H", "a", "--hosts", __file__, "--", "true"), "say which hosts"),
        (("-H", "a:1", "--workers", "2", "--", "true"), "2 workers do not fit"),
        (("-H", "a:x", "--", "true"), "slots is a whole number"),
        (("-H", "a"), "say what the workers run"),
        (("-H", "a", "--env", "=x", "--", "true"), "write NAME or NAME=VALUE"),
        (("-H", "a", "--env", "NO_SUCH_VARIABLE", "--", "true"), "there is no such variable here"),
        (("-H", "a", "--sync-code", "--", "true"), "names no script"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_started(capsys, arguments, says) -> None:
    assert run(["launch", *arguments]) == exits.USAGE
    assert says in capsys.readouterr().err


def test_a_dry_run_prints_who_runs_where_and_starts_nothing(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.txt").write_text("me@a slots=1 port=2222\nb servers=1 workers=1 address=10.0.0.7\n")
    (tmp_path / "train.py").touch()
    flags = ["--hosts", "hosts.txt", "--dry-run", "--sync-code", "--ports", "5571-5580"]
    ended = run(["launch", *flags, "--", "python", "train.py", "--lr", "1 e"])
    said = capsys.readouterr().out.splitlines()
    assert ended == exits.OK
    assert [line for line in said if not line.startswith((" ", "copies"))] == [
        "a: coordinator, worker-0",
        "b: server-0, worker-1",
    ]
    assert any(line.startswith("  ssh -T ") and " -p 2222 -- me@a " in line for line in said)
    assert f"copies 2 files, 62 B, of {tmp_path} to 2 hosts" in said
    assert any(line.startswith("  rsync ") and line.endswith(f"{tmp_path}/ b:{tmp_path}/") for line in said)
    (server,) = (line for line in said if "zmqps server " in line)
    assert "--address=tcp://10.0.0.7:0" in server
    assert "--ports=5571-5580" in server
    assert f"    cd {tmp_path} && ZMQPS_WORKER_INDEX=1 python train.py --lr '1 e'" in said
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def large(tmp_path, monkeypatch) -> Path:
    """A folder with more in it than code mostly is, to be copied for a script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(code, "MUCH_NBYTES", 1000)
    (tmp_path / "train.py").write_text("pass\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "images").write_bytes(bytes(2000))
    return tmp_path


def test_secrets_are_not_copied_that_options_variables_and_the_configuration_name(
    tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    named = ("by-flag", "by-variable", "by-table", "identity", "identity2")
    for name in ("train.py", "plain", *named):
        (tmp_path / name).write_text("x" * 32)
    (tmp_path / "zmqps.toml").write_text('[coordinator]\npage-token = "by-table"\n')
    monkeypatch.setenv("ZMQPS_UP_JOB_SECRET", "by-variable")
    ssh = "ssh -i identity -oIdentityFile=identity2"
    command = [
        "-H",
        "a,b",
        "--ssh",
        ssh,
        "--job-secret",
        "by-flag",
        "--sync-code",
        "--dry-run",
        "--",
        "python",
        "train.py",
    ]
    assert run(["--config", "zmqps.toml", "launch", *command]) == exits.OK
    said = capsys.readouterr().out
    assert "not copied, for these are secrets: by-flag, by-table, by-variable, identity, identity2\n" in said
    assert "copies 3 files" in said  # the script, its neighbour and the configuration


@pytest.mark.parametrize("value", ["5", "true", '["keys"]', '""'])
def test_a_configuration_of_another_command_that_names_no_file_stops_no_copy(
    tmp_path, monkeypatch, capsys, value
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "zmqps.toml").write_text(f"[coordinator]\nkeys = {value}\n")
    command = ["launch", "-H", "a", "--sync-code", "--dry-run", "--", "python", "train.py"]
    assert run(["--config", "zmqps.toml", *command]) == exits.OK
    assert "copies 2 files" in capsys.readouterr().out


SYNC = ("launch", "-H", "a,b", "--sync-code", "--", "python", "train.py")


def test_much_code_is_asked_for_on_a_terminal(large, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", lambda *told, **options: False)
    monkeypatch.setattr(code, "check_rsync", lambda: None)
    assert run(list(SYNC)) == exits.USAGE
    said = capsys.readouterr().err
    assert f"--sync-code copies 2 files, 2 kB, of {large} to 2 hosts; most of it is data/ 2 kB, train.py 5 B" in said
    assert not (large / "runs").exists(), "nothing was started"


def test_without_rsync_it_is_said_which_package_to_install_here(large, capsys, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert run(list(SYNC)) == exits.USAGE
    said = capsys.readouterr().err
    assert "there is no rsync on this host: install the package rsync there, or share the directory" in said
    assert "Z031" in said


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("rsync") is None, reason="there is no rsync")
@pytest.mark.parametrize(
    ("rsync", "says"),
    [
        ("", "there is no rsync on 127.0.0.11: install the package rsync there"),
        ("echo 'rsync: --mkpath: unknown option' >&2; exit 1", "no rsync 3.2.3 or newer on 127.0.0.11"),
    ],
    ids=["none", "old"],
)
def test_without_rsync_on_a_host_it_is_said_which_package_to_install_there(ssh, zmqps, tmp_path, rsync, says) -> None:
    there = tmp_path / "there"
    there.mkdir()
    if rsync:
        (there / "rsync").write_text(f"#!/bin/sh\n{rsync}\n")
        (there / "rsync").chmod(0o755)
    stand_in = Path(ssh[2])
    instead = f"case $* in *' rsync --server'*) PATH={there}; exec /bin/sh -c 'rsync --server';; esac"
    stand_in.write_text(stand_in.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{instead}\n"))
    (tmp_path / "train.sh").write_text("true\n")
    result = zmqps(*ssh, "-H", "127.0.0.11:1", "--sync-code", "--", "sh", "train.sh")
    assert result.returncode == exits.USAGE, result.stdout + result.stderr
    assert says in result.stderr


@pytest.mark.processes
def test_a_cluster_ends_with_its_workers_and_its_logs_are_here(ssh, zmqps, tmp_path) -> None:
    (tmp_path / "hosts.txt").write_text("127.0.0.11 servers=1 workers=0\nme@127.0.0.12 slots=2  # for the workers\n")
    script = 'echo "$ZMQPS_WORKER_INDEX of $ZMQPS_COORDINATOR, $COLOUR"'
    result = zmqps(*ssh, "--hosts", "hosts.txt", "--env", "COLOUR=red", "--", "sh", "-c", script)
    assert result.returncode == exits.OK, result.stdout + result.stderr
    for index in (0, 1):
        assert re.search(
            rf"^worker-{index}@127\.0\.0\.12 +\| .* {index} of tcp://127\.0\.0\.11:\d+, red$", result.stdout, re.M
        )
    assert "all 2 workers have ended well" in result.stdout
    assert {line.partition(" ")[0] for line in result.stdout.splitlines()} >= {
        "coordinator@127.0.0.11", "server-0@127.0.0.11", "zmqps"
    }  # fmt: skip
    logs = zmqps("logs", "worker-1").stdout.splitlines()
    assert len(logs) == 1
    assert "1 of tcp://" in logs[0]
    assert not (tmp_path / ".zmqps").exists(), "the keys are gone, too"


@pytest.mark.processes
def test_that_what_was_trained_could_not_be_saved_is_an_exit_code_of_its_own(ssh, zmqps) -> None:
    result = zmqps(*ssh, "-H", "127.0.0.11:1", "--checkpoint", "ckpt", "--", sys.executable, "-c", UNSAVED)
    assert result.returncode == exits.NOT_SAVED, result.stdout + result.stderr


@pytest.mark.processes
def test_a_host_of_workers_gets_the_key_of_a_worker_only(ssh, zmqps, tmp_path) -> None:
    (tmp_path / "hosts.txt").write_text("127.0.0.11 servers=1 workers=0\n127.0.0.12 slots=1\n")
    result = zmqps(*ssh, "--hosts", "hosts.txt", "--", "sh", "-c", "ls -m $ZMQPS_KEYS $ZMQPS_KEYS/.. | tr -d '\\n'")
    assert result.returncode == exits.OK, result.stdout + result.stderr
    (said,) = [line for line in result.stdout.splitlines() if line.startswith("worker-0@")]
    assert re.search(r"/worker-keys:cluster\.pub, worker\.key\S+/\.\.:worker-keys$", said)


#: Says what becomes of the list of keys on its host.
READER = """list=$ZMQPS_KEYS/../keys/authorized.toml
[ -e $list ] || { echo there is no list; exec sleep 1000; }
for word in 'name = "alice"' 'revoked = '; do
    until grep -q "$word" $list; do sleep 0.1; done
    echo "found $word"
done
exec sleep 1000"""


def look_on(observer: zmqps.Worker) -> None:
    ends_at = time.monotonic() + PATIENCE
    while time.monotonic() < ends_at:
        observer.status()


@pytest.mark.processes
def test_a_key_that_is_made_or_revoked_meanwhile_is_so_on_every_host_with_a_node(ssh, start, tmp_path) -> None:
    (tmp_path / "hosts.txt").write_text(
        "127.0.0.11 servers=1 workers=1\n127.0.0.12 servers=1 workers=1\n127.0.0.13 servers=0 workers=1\n"
    )
    folder = tmp_path / ".zmqps" / "keys"
    launch = start(*ssh, "--hosts", "hosts.txt", "--", "sh", "-c", READER)
    address = launch.wait_for(r"cluster at (\S+) on 3 hosts")[1]
    launch.wait_for(r"worker-2@\S+ .* there is no list")
    token = keys.token(folder, "observer", address, name="alice")
    for index in (0, 1):
        launch.wait_for(rf'worker-{index}@\S+ .* found name = "alice"')
    with zmqps.connect(security=zmqps.Security(token=token), observer=True, timeout=PATIENCE) as observer:
        assert observer.status()["servers"] == 2
        assert run(["keys", "revoke", "alice", "--keys", str(folder)]) == exits.OK
        for index in (0, 1):
            launch.wait_for(rf"worker-{index}@\S+ .* found revoked = ")
        with pytest.raises(KeyRefusedError):
            look_on(observer)
    (folder / "worker.key").rename(tmp_path / "worker.key")
    launch.wait_for("error: the keys have changed, and hosts have those of before: cannot read .*worker.key")
    launch.popen.send_signal(signal.SIGTERM)
    assert launch.exit_code() == exits.TERMINATED


@pytest.mark.processes
def test_the_first_worker_that_fails_ends_the_others_and_is_the_exit_code(ssh, start) -> None:
    script = "[ $ZMQPS_WORKER_INDEX = 3 ] || exec sleep 1000; echo out of luck; exit 8"  # as if a host were lost
    launch = start(*ssh, *TWO, "--", "sh", "-c", script)
    assert launch.exit_code() == 8
    said = [line.partition(" error: ")[2] for line in launch.output.splitlines() if " error: " in line]
    assert said == ["worker-3@127.0.0.12 failed with exit code 8; its last lines:", "  out of luck"]


@pytest.mark.processes
def test_a_worker_that_fails_starts_again_as_often_as_it_may(ssh, zmqps, tmp_path) -> None:
    script = f"echo once more >>{tmp_path}/tries; [ $(wc -l <{tmp_path}/tries) = 3 ]"
    result = zmqps(*ssh, "-H", "127.0.0.11:1", "--restart-workers", "2", "--", "sh", "-c", script)
    assert result.returncode == exits.OK
    assert "it starts again in 0.5 s: restart 1 of 2" in result.stdout
    assert "it starts again in 1 s: restart 2 of 2" in result.stdout


@pytest.mark.processes
def test_a_host_that_cannot_be_reached_is_named(ssh, zmqps) -> None:
    result = zmqps(*ssh, "-H", "127.0.0.11,nowhere", "--", "true")
    assert result.returncode == exits.FAILED
    assert "nowhere cannot run zmqps: ssh: Could not resolve hostname nowhere; see what `ssh nowhere" in result.stderr


@pytest.mark.processes
@pytest.mark.parametrize(
    ("line", "option", "code", "says"),
    [
        ("127.0.0.11 address=10.9.9.9", (), exits.USAGE, "cannot bind 'tcp://10.9.9.9:0'"),
        ("127.0.0.11 interface=eth17", (), exits.FAILED, "no interface 'eth17' on"),
        ("127.0.0.11", ("--remote-directory", "/nowhere"), exits.FAILED, "there is no directory '/nowhere'"),
        ("127.0.0.11 python=/nowhere/python", (), exits.FAILED, "or name its Python with --python"),
        ("127.0.0.11", ("--device", "cuda:77"), exits.FAILED, ""),
    ],
)
def test_what_keeps_a_node_from_starting_is_said(ssh, zmqps, tmp_path, line, option, code, says) -> None:
    (tmp_path / "hosts.txt").write_text(line)
    result = zmqps(*ssh, "--hosts", "hosts.txt", *option, "--", "true")
    assert (result.returncode, result.stdout.count("Traceback")) == (code, 0), result.stderr
    assert says in result.stderr
    assert "never retrieved" not in result.stderr


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, exits.INTERRUPTED), (signal.SIGTERM, exits.TERMINATED)], ids=["INT", "TERM"]
)
def test_a_signal_ends_everything_everywhere(ssh, start, number, code) -> None:
    launch = start(*ssh, *TWO, "--", "sh", "-c", "sleep 1000 & echo at work; wait")
    for index in range(4):
        launch.wait_for(rf"worker-{index}@\S+ .* at work")
    processes = everything_of(launch.pid)
    launch.popen.send_signal(number)
    assert launch.exit_code() == code
    assert_gone(processes, PATIENCE)


@pytest.mark.processes
def test_the_status_shows_the_keys_that_the_launcher_has_made(ssh, start, zmqps, tmp_path) -> None:
    launch = start(*ssh, *TWO, "--", "sh", "-c", "echo at work; exec sleep 1000")
    launch.wait_for(r"worker-1@\S+ .* at work")
    assert json.loads(state_path(tmp_path).read_text())["keys"] == str(tmp_path / ".zmqps/keys")
    found = zmqps("status", "--timeout", "20")
    launch.popen.send_signal(signal.SIGTERM)
    assert launch.exit_code() == exits.TERMINATED
    assert found.returncode == exits.OK, found.stderr


@pytest.mark.processes
def test_a_launcher_that_is_killed_leaves_nothing_anywhere(ssh, start) -> None:
    launch = start(*ssh, *TWO, "--", "sh", "-c", "sleep 1000 & echo at work; wait")
    for index in range(4):
        launch.wait_for(rf"worker-{index}@\S+ .* at work")
    processes = everything_of(launch.pid)
    assert len(processes) >= 1 + 2 * 2 + 2 + 4 * 2
    launch.popen.kill()
    assert_gone(processes, PATIENCE)


@pytest.mark.processes
def test_a_host_that_falls_silent_is_lost_and_ends_the_rest(ssh, start) -> None:
    launch = start(*ssh, *TWO, "--silence", "5", "--", "sh", "-c", "sleep 1000 & echo at work; wait")
    for index in range(4):
        launch.wait_for(rf"worker-{index}@\S+ .* at work")
    processes = everything_of(launch.pid)
    agents = [process for process in processes if process.cmdline()[-2:-1] == ["agent"]]
    assert len(agents) == 2
    agents[1].suspend()  # says nothing any more, as a host that has vanished
    assert launch.exit_code() == exits.HOST_LOST
    assert re.search(r"error: (127\.0\.0\.1\d) is lost: nothing was heard from \1 for 5 s", launch.output)
    assert_gone(processes, PATIENCE)


@pytest.mark.processes
def test_hosts_end_what_they_run_for_a_launcher_that_falls_silent(ssh, start) -> None:
    launch = start(*ssh, *TWO, "--silence", "5", "--", "sh", "-c", "sleep 1000 & echo at work; wait")
    for index in range(4):
        launch.wait_for(rf"worker-{index}@\S+ .* at work")
    others = everything_of(launch.pid)[1:]
    launch.popen.send_signal(signal.SIGSTOP)
    assert_gone(others, PATIENCE)
    launch.popen.send_signal(signal.SIGCONT)
    assert launch.exit_code() == exits.HOST_LOST


@pytest.mark.processes
@pytest.mark.skipif(bool(hosts.missing()), reason=hosts.missing())
def test_over_a_real_sshd_with_code_that_is_copied_there(start, tmp_path) -> None:
    """The script's folder is copied to another path; a killed ssh ends its host."""
    code, there = tmp_path / "code", tmp_path / "there"
    code.mkdir()
    there.mkdir()
    (code / "train.sh").write_text("echo trained by $ZMQPS_WORKER_INDEX in $PWD\n[ -z $1 ] || exec sleep $1\n")
    with hosts.real_sshd(tmp_path) as ssh:
        told = (
            "launch",
            "--ssh",
            ssh,
            "--kernels",
            "numpy",
            "-H",
            "node-a:1,node-b:1",
            "--remote-directory",
            str(there),
        )
        launch = start(*told, "--sync-code", "--", "sh", "code/train.sh")
        assert launch.exit_code() == exits.OK, launch.output
        assert re.search(rf"worker-0@node-a .* trained by 0 in {there}\n", launch.output)
        assert re.search(rf"worker-1@node-b .* trained by 1 in {there}\n", launch.output)

        launch = start(*told, "--", "sh", "code/train.sh", "1000")
        launch.wait_for("worker-1@node-b .* trained by 1")
        mine = everything_of(launch.pid)
        (one,) = [process for process in mine if "node-b" in process.cmdline()]
        one.kill()
        assert launch.exit_code() == exits.HOST_LOST
        assert "node-b is lost: the connection to node-b has ended" in launch.output
