"""Files of the coordinator's host, by message: the same bytes, the same errors, and nothing else of that host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.saved import OWNER
from zmqps.core.coordinator.saving.files import MAX_ASKED, FileService, Served, Serving
from zmqps.core.protocol.events import Resolve, Run, Send
from zmqps.core.protocol.messages import FileAnswer, FileAsk
from zmqps.core.server.saves import FileRelay, FileRequest
from zmqps.errors import CheckpointStorageError, ConfigurationError, LimitError
from zmqps.nodes import relay as relays
from zmqps.nodes.checkpoints import CheckpointStore
from zmqps.nodes.relay import CHUNK_NBYTES, SCHEME, RelayStorage


class Somebody:
    """As much of a member as is looked at."""

    def __init__(self) -> None:
        self.incarnation, self.peer = b"s" * 16, b"@server"


SERVER: Any = Somebody()


def joined(store: CheckpointStore, lose: Callable[[FileAsk], bool] = lambda asked: False) -> RelayStorage:
    """Return a server's view of a store, over messages of which some are lost with their connection."""
    relay, files, storage = FileRelay(), FileService({SERVER.incarnation: SERVER}, store.serve), RelayStorage()

    def carry(actions: list[Any]) -> None:
        for action in actions:
            message = action.message
            if lose(message):
                carry(relay.again())
                return
            (run,) = files.ask(SERVER, message, 0.0)
            assert isinstance(run, Run)
            try:
                value: Any = run.work()
            except Exception as error:
                value = error
            (sent,) = files.returned(run.tag, value)
            assert isinstance(sent, Send)
            assert isinstance(sent.message, FileAnswer)
            for resolved in relay.answer(sent.message, 0.0):
                assert isinstance(resolved, Resolve)
                storage.resolve(resolved.operation, resolved.value)

    storage.submit = lambda request: carry(relay.ask(request, 0.0))
    return storage


def store(path: Path) -> CheckpointStore:
    return CheckpointStore(str(path), 3, "coordinator", owner=OWNER)


def test_what_is_written_by_way_of_the_coordinator_is_read_back(tmp_path) -> None:
    kept = store(tmp_path)
    path = kept.begin("a job", 7).removeprefix(SCHEME)
    storage = joined(kept)
    file = storage.create(f"{path}/x")
    data = bytes(range(256)) * (CHUNK_NBYTES // 128)
    file.write_at(memoryview(data)[5:], 5)
    file.write_at(data[:5], 0)
    file.sync()
    file.close()
    storage.sync_directory(path)
    assert Path(path, "x").read_bytes() == data
    assert storage.read(f"{path}/x") == data
    assert storage.read(f"{path}/x", 3, CHUNK_NBYTES + 9) == data[3 : CHUNK_NBYTES + 12]
    assert storage.size(f"{path}/x") == len(data)
    assert "x" in storage.names(path)
    assert storage.is_directory(path)


def test_requests_that_a_broken_connection_has_lost_are_made_again(tmp_path) -> None:
    lost: set[int] = set()

    def lose(asked: FileAsk) -> bool:
        first = asked.request not in lost
        lost.add(asked.request)
        return first

    kept = store(tmp_path)
    path = kept.begin("j", 0).removeprefix(SCHEME)
    file = joined(kept, lose).create(f"{path}/x")
    file.write_at(b"abc", 0)
    file.sync()
    assert Path(path, "x").read_bytes() == b"abc"


def test_a_file_that_is_made_twice_is_the_same_one(tmp_path) -> None:
    kept = store(tmp_path)
    path = kept.begin("j", 0).removeprefix(SCHEME)
    kept.serve("create", f"{path}/x", 0, 0, ())
    kept.serve("write", f"{path}/x", 0, 0, (b"abc",))
    kept.serve("create", f"{path}/x", 0, 0, ())
    assert Path(path, "x").read_bytes() == b"abc"


def test_a_file_that_is_not_there_is_the_error_it_is_elsewhere(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        joined(store(tmp_path)).size(f"{tmp_path}/nothing")


@pytest.mark.parametrize("what", ["create", "write", "sync", "sync_directory"])
def test_no_server_writes_beside_the_checkpoint_that_is_made(tmp_path, what) -> None:
    kept = store(tmp_path)
    path = kept.begin("j", 0).removeprefix(SCHEME)
    for other in (f"{tmp_path}/x", f"{path}x/y", f"{path}/../x", "/etc/passwd"):
        with pytest.raises(PermissionError):
            kept.serve(what, other, 0, 0, (b"x",))


@pytest.mark.parametrize("what", ["read", "size", "names", "is_directory"])
def test_no_server_reads_beside_the_checkpoints(tmp_path, what) -> None:
    kept = store(tmp_path / "checkpoints")
    for other in ("/etc/passwd", str(tmp_path), f"{tmp_path}/checkpoints/../x", f"{tmp_path}/checkpointsx"):
        with pytest.raises(PermissionError):
            kept.serve(what, other, 0, 9, ())


def test_what_is_no_request_is_refused(tmp_path) -> None:
    with pytest.raises(PermissionError, match="no server may remove"):
        store(tmp_path).serve("remove", f"{tmp_path}/x", 0, 0, ())


def test_files_of_a_checkpoint_that_is_given_up_are_closed_and_gone(tmp_path) -> None:
    kept = store(tmp_path)
    path = kept.begin("j", 0)
    joined(kept).create(f"{path.removeprefix(SCHEME)}/x")
    kept.abandon(path)
    assert list((tmp_path / "j").iterdir()) == []
    assert not kept._open


def test_a_coordinator_that_does_not_answer_is_given_up(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(relays, "ANSWER_S", 0.01)
    monkeypatch.setattr(relays, "LOOK_S", 0.01)
    with pytest.raises(CheckpointStorageError, match="has not answered"):
        RelayStorage().size("/x")


def test_nobody_waits_once_the_server_has_ended() -> None:
    storage = RelayStorage()
    storage.end()
    with pytest.raises(CheckpointStorageError):
        storage.size("/x")


def test_a_coordinator_without_files_for_servers_says_so() -> None:
    with pytest.raises(ConfigurationError, match="--checkpoint-via"):
        FileService({}, None).ask(SERVER, FileAsk(1, "size", "/x", 0, 0, ()), 0.0)


def test_a_server_has_so_many_requests_at_a_time() -> None:
    files = FileService({SERVER.incarnation: SERVER}, lambda *asked: Served({}))
    for number in range(MAX_ASKED):
        files.ask(SERVER, FileAsk(number, "size", "/x", 0, 0, ()), 0.0)
    with pytest.raises(LimitError):
        files.ask(SERVER, FileAsk(99, "size", "/x", 0, 0, ()), 0.0)
    files.returned(Serving(SERVER.incarnation, 0), Served({}))
    files.ask(SERVER, FileAsk(99, "size", "/x", 0, 0, ()), 0.0)


def test_nothing_is_said_to_a_server_that_has_gone() -> None:
    members: dict[bytes, Any] = {SERVER.incarnation: SERVER}
    files = FileService(members, lambda *asked: Served({}))
    files.ask(SERVER, FileAsk(1, "size", "/x", 0, 0, ()), 0.0)
    members.clear()
    assert files.returned(Serving(SERVER.incarnation, 1), Served({})) == []


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    relay = FileRelay()
    relay.ask(FileRequest(what="size", path="/x"), 0.0)
    assert relay.answer(FileAnswer(7, {}, ()), 0.0) == []
    assert len(relay.answer(FileAnswer(1, {}, ()), 0.0)) == 1
    assert relay.answer(FileAnswer(1, {}, ()), 0.0) == []
