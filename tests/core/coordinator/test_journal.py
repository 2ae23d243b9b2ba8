"""What has changed is written once, as it is when an event is dealt with; and keys say what they are of."""

from __future__ import annotations

from zmqps.core.coordinator.journal import DirtyKeys, key_of, nothing, packed, set_key, split_key, split_set, unpacked
from zmqps.core.protocol.events import Record
from zmqps.core.protocol.messages import Departed, Released


def test_each_key_is_written_once_as_it_is_in_the_end() -> None:
    changes, state = DirtyKeys(kept=True), {"a": 1}
    changed = changes.of("job", "a")
    changed()
    state["a"] = 2
    changed()
    changes.add("cluster")
    written = changes.records(lambda what, whose: state.get(whose))
    assert written == [Record("job/a", 2), Record("cluster", None)]
    assert changes.records(lambda what, whose: 1) == []


def test_where_there_is_no_journal_nothing_is_noted() -> None:
    changes = DirtyKeys()
    assert changes.of("job", "a") is nothing
    changes.add("cluster")
    assert changes.records(lambda what, whose: 1) == []


def test_keys_say_what_they_are_of_whatever_the_names() -> None:
    for name in ("default", "a/b", "", "3/x"):
        assert split_key(key_of("job", name)) == ("job", name)
        for data in ("train", "x/y", ""):
            assert split_set(set_key(name, data)) == (name, data)
    assert set_key("a/b", "c") != set_key("a", "b/c")


def test_short_messages_are_kept_as_they_travel() -> None:
    for message in (Released(7, 3), Departed(b"w" * 16, 1)):
        assert unpacked(packed(message)) == message
