"""This end of `zmqps launch`, against agents that are scripts."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.pace import allow
from zmqps.core.protocol import exits
from zmqps.errors import NodeFailedError
from zmqps.launch.far import GREETING, Message, encode
from zmqps.launch.hosts import Host
from zmqps.launch.remote import RemoteHost

PATIENCE = allow(20.0)
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


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'Permission denied' >&2; exit 255", "exit code 255; its last lines:\n  Permission denied"),
        ("echo 'motd'; exit 0", "exit code 0; its last lines:\n  motd"),
        (f"""echo '{GREETING}{{"zmqps": "0.9"}}'; sleep 1000""", "another version: zmqps 0.9 there, 1 here"),
        ("yes; sleep 1000", "too much text of login scripts"),
    ],
)
def test_a_host_without_an_agent_is_named_with_what_ssh_said(script: str, says: str) -> None:
    with pytest.raises(NodeFailedError) as caught:
        with_agent(script, nothing)
    assert says in str(caught.value)


def test_what_a_login_script_says_is_heard_and_passed_over() -> None:
    async def work(host: RemoteHost) -> str:
        return await host.set_up({})

    assert with_agent(HELLO + READY + "sleep 1000", work) == ("10.0.0.7", ["Welcome!"])


@pytest.mark.parametrize(
    ("script", "says"),
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


#: Says what it was told to once it is asked for what was recorded.
ARCHIVE = """while read line; do case $line in *'"do":"fetch"'*) printf '%s\\n' {}; {} ;; esac; done"""


def fetched(said: list[Message], then: str = ":") -> dict[str, bytes]:
    found: dict[str, bytes] = {}

    def put(name: str, data: bytes) -> None:
        found[name] = found.get(name, b"") + data

    script = ARCHIVE.format(" ".join(f"'{encode(message).decode().strip()}'" for message in said), then)
    with_agent(HELLO + script, lambda host: host.fetch(put))
    return found


def part(name: str, text: bytes) -> Message:
    return {"is": "file", "name": name, "data": base64.b64encode(text).decode()}


def test_the_parts_of_files_arrive_in_order() -> None:
    found = fetched([part("a", b"1"), part("a", b"2"), part("b", b"3"), {"is": "fetched"}])
    assert found == {"a": b"12", "b": b"3"}


@pytest.mark.parametrize(
    ("said", "then", "says"),
    [
        ([{"is": "refused", "to": "fetch", "name": "", "text": "the disk is broken"}], ":", "the disk is broken"),
        ([part("a", b"1")], "exit", "the connection to far has ended"),
    ],
)
def test_files_that_do_not_all_arrive_are_an_error(said: list[Message], then: str, says: str) -> None:
    with pytest.raises(NodeFailedError, match=says):
        fetched(said, then)
