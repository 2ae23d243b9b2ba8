"""This end of `zmqps launch`, against agents that are scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.pace import allow
from tests.tables import for_each
from zmqps.core.protocol import exits
from zmqps.errors import ProgramMissingError, UnusableHostError
from zmqps.launch.far import GREETING
from zmqps.launch.hosts import Host
from zmqps.launch.remote import RemoteHost

PATIENCE = allow(20.0)
#: What to do about a host that lets nobody in, and about one that has no zmqps.
LOGIN, INSTALL = "see what `ssh far true` says; it must work without a password", "install zmqps there at the same path"
HELLO = f"""echo 'Welcome!'; echo '{GREETING}{{"zmqps": "1"}}'; """
READY = """echo '{"is":"ready","address":"10.0.0.7","cores":8}'; """


def with_agent(script: str, work: Any, silence: float = PATIENCE) -> Any:
    """Do something with a host whose agent is a script."""
    said: list[str] = []

    async def main() -> Any:
        host = RemoteHost(Host(name="far"), ["sh", "-c", script], "1", silence, said.append)
        try:
            async with asyncio.timeout(PATIENCE):
                await host.open()
                return await work(host)
        finally:
            host.lost = host.lost or "over"  # the script would not notice
            await host.close()

    result = asyncio.run(main())
    return result, said


async def nothing(host: RemoteHost) -> None:
    pass


def lost_worker(host: RemoteHost) -> Coroutine[Any, Any, tuple[int, str]]:
    async def work() -> tuple[int, str]:
        process = host.start("worker-0", "worker", None, lambda lines: None, {})  # type: ignore[arg-type]
        return await process.exited(), host.lost

    return work()


@for_each(
    "script, says",
    [
        ("echo 'Permission denied' >&2; exit 255", ("Permission denied", LOGIN)),
        ("echo 'no identity: No such file or directory' >&2; echo Denied >&2; exit 255", ("Denied", LOGIN)),
        ("echo 'motd'; exit 0", ("motd", LOGIN)),
        ("exit 255", ("sh ended with exit code 255, and said nothing", LOGIN)),
        (
            "echo 'bash: line 1: /opt/python: No such file or directory' >&2; exit 127",
            ("/opt/python: No such", INSTALL),
        ),
        ("echo 'python: No module named zmqps' >&2; exit 1", ("python: No module named zmqps", INSTALL)),
        ("echo 'No such command: agent'; echo 'Try --help'; exit 2", ("No such command", "install the same zmqps")),
        ("""echo "ModuleNotFoundError: No module named 'msgpack'"; exit 1""", ("msgpack", "install zmqps again")),
        (
            f"""echo '{GREETING}{{"zmqps": "0.9"}}'; sleep 1000""",
            ("zmqps 0.9 there, 1 here", "the same version everywh"),
        ),
        ("yes; sleep 1000", ("lines came before an answer", "login scripts print nothing")),
    ],
)
def test_a_host_without_an_agent_is_named_with_what_ssh_said_and_what_to_do(script: str, says: tuple[str, str]) -> None:
    with pytest.raises(UnusableHostError) as caught:
        with_agent(script, nothing)
    assert (caught.value.host, caught.value.number) == ("far", "Z030")
    assert [text in str(caught.value) for text in says] == [True, True], str(caught.value)


def test_without_ssh_it_is_said_which_package_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    async def main() -> None:
        await RemoteHost(Host(name="far"), ["ssh", "far", "true"], "1", PATIENCE, print).open()

    with pytest.raises(ProgramMissingError, match="there is no ssh on this host: install the package openssh-client"):
        asyncio.run(main())


def test_what_a_login_script_says_is_heard_and_passed_over() -> None:
    async def work(host: RemoteHost) -> str:
        return await host.set_up({})

    assert with_agent(HELLO + READY + "sleep 1000", work) == ("10.0.0.7", ["Welcome!"])


@for_each(
    "script, says",
    [
        ("read x; exit 3", "the connection to far has ended"),
        ("sleep 1000", "nothing was heard from far for 1 s"),
        ("echo rubbish; sleep 1000", "said what cannot be understood"),
        ("echo '[]'; sleep 1000", "said what cannot be understood"),
        ("""echo '{"is":"ended","name":"nobody","code":0}'; sleep 1000""", "said what cannot be understood"),
    ],
)
def test_a_host_that_is_lost_ends_its_processes(script: str, says: str) -> None:
    (code, lost), _ = with_agent(HELLO + script, lost_worker, silence=1.0)
    assert code == exits.HOST_LOST
    assert says in lost


def test_keys_that_a_host_does_not_take_are_told_and_are_no_answer_to_anything_else() -> None:
    refused = '{"is":"refused","to":"keys","name":"","text":"the disk is full"}'
    script = f"""while read line; do case $line in
        *'"do":"keys"'*) echo '{refused}' ;; *'"do":"route"'*) echo '{{"is":"routed","address":"10.0.0.7"}}' ;;
    esac; done"""

    async def work(host: RemoteHost) -> tuple[str, str]:
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        host.not_renewed = told.set_result
        host.renew({"keys/authorized.toml": ""})
        return await told, await host.route("10.0.0.8")

    assert with_agent(HELLO + script, work) == (("the disk is full", "10.0.0.7"), ["Welcome!"])
