"""The exception tree: complete, documented, and the same on both ends of a connection."""

from __future__ import annotations

import pickle
import re
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zmqps.errors
from tests.tables import for_each
from zmqps.core.protocol.message import MAX_FACT_CHARS, MAX_FACTS
from zmqps.core.protocol.messages import Error
from zmqps.core.protocol.wire import decode, encode
from zmqps.errors import (
    BY_CODE,
    DeadlineError,
    LimitError,
    PSError,
    UnknownParameterError,
    counted,
    from_wire,
    printable,
)

PROTOCOL = Path(__file__).resolve().parents[1] / "docs" / "protocol.md"
FACTS = {"str": "a text", "int": 7, "float": 1.5}


def example(cls: type[PSError]) -> PSError:
    """Return an error of a class, with facts of the types it annotates."""
    owner = next(base for base in cls.__mro__ if set(cls.fact_names) <= set(vars(base).get("__annotations__", ())))
    return cls(**{name: FACTS[owner.__annotations__[name]] for name in cls.fact_names})


every_class = for_each("cls", BY_CODE.values())


def test_the_docstring_is_the_tree() -> None:
    doc = zmqps.errors.__doc__ or ""
    drawn = re.findall(r"^\s{4}([│├└─ ]*)([A-Z]\w+)(?: \((\w+)\))?", doc, re.MULTILINE)
    above: list[str] = []
    tree = {}
    for indent, name, builtin in drawn:
        del above[len(indent) // 4 :]
        tree[name] = (above[-1] if above else "Exception", builtin)
        above.append(name)
    bases = {cls.__name__: [base.__name__ for base in cls.__bases__] for cls in BY_CODE.values()}
    assert {name: [base for base in entry if base] for name, entry in tree.items()} == bases


def test_every_class_has_a_number_of_its_own() -> None:
    def tree(cls: type[PSError]) -> list[type[PSError]]:
        return [cls, *(inner for sub in cls.__subclasses__() for inner in tree(sub))]

    assert sorted(cls.code for cls in tree(PSError)) == sorted(BY_CODE)


#: Every number that was ever given to an error, also those of errors that are no more: none is given twice, and what
#: users have written down, or find by a search, keeps its meaning. New ones are added; no line is changed or removed.
NUMBERS = {
    "Z001": "PSError",
    "Z002": "ConfigurationError",
    "Z003": "AddressInUseError",
    "Z004": "DeadlineError",
    "Z005": "ClosedError",
    "Z006": "PeerLostError",
    "Z007": "EvictedError",
    "Z008": "ShutdownError",
    "Z009": "NodeFailedError",
    "Z010": "InternalError",
    "Z011": "IdentityError",
    "Z012": "ForkedError",
    "Z013": "UnsafeFileError",
    "Z014": "CoordinatorRestartedError",
    "Z015": "UnresolvedNameError",
    "Z016": "WrongPeerError",
    "Z017": "UnreachableAddressError",
    "Z018": "KeyRefusedError",
    "Z019": "HostLeaderLostError",
    "Z020": "ProtocolError",
    "Z021": "ProtocolVersionError",
    "Z022": "LimitError",
    "Z023": "NotJoinedError",
    "Z024": "StaleEpochError",
    "Z025": "SliceRangeError",
    "Z026": "LedgerError",
    "Z027": "CodecError",
    "Z030": "UnusableHostError",
    "Z031": "ProgramMissingError",
    "Z040": "JobError",
    "Z041": "JobMismatchError",
    "Z042": "UnknownParameterError",
    "Z043": "ShapeError",
    "Z044": "DtypeError",
    "Z045": "NonFiniteGradientError",
    "Z046": "OptimizerError",
    "Z047": "VersionError",
    "Z048": "JobEndedError",
    "Z049": "JobMemoryError",
    "Z050": "ServerMemoryError",
    "Z051": "ShardBrokenError",
    "Z052": "TableFullError",
    "Z053": "AmbiguousNodeError",
    "Z060": "DeviceError",
    "Z061": "DeviceMemoryError",
    "Z070": "CheckpointError",
    "Z071": "CheckpointNotFoundError",
    "Z072": "CheckpointForeignError",
    "Z073": "CheckpointFormatError",
    "Z074": "CheckpointCorruptError",
    "Z075": "CheckpointMismatchError",
    "Z076": "CheckpointStorageError",
    "Z077": "CheckpointFailedError",
    "Z078": "CheckpointTooSoonError",
    "Z080": "DeposedError",
    "Z081": "DrainError",
    "Z082": "ScaleError",
    "Z085": "JournalError",
    "Z086": "JournalBehindError",
}


def test_a_number_means_for_ever_what_it_meant_first() -> None:
    assert {cls.number: cls.__name__ for cls in BY_CODE.values()}.items() <= NUMBERS.items()
    assert all(cls.number == f"Z{cls.code:03d}" for cls in BY_CODE.values())


@every_class
def test_a_traceback_ends_with_where_to_read_on(cls) -> None:  # type: ignore[no-untyped-def]
    error = example(cls)
    _, *notes = "".join(traceback.format_exception_only(error)).removesuffix("\n").rsplit("\n", 1)
    says = [f"zmqps explain {cls.number} says what happened and what to do next"]
    assert (notes[-1:] == says) == (cls is not PSError)
    assert cls.number not in str(error), "the text is the same as ever"
    assert getattr(pickle.loads(pickle.dumps(error)), "__notes__", []) == getattr(error.again(), "__notes__", [])


@every_class
def test_both_ends_of_a_connection_raise_the_same(cls) -> None:  # type: ignore[no-untyped-def]
    error = example(cls)
    message = decode(encode(Error(1, error.code, str(error), error.facts())))
    assert isinstance(message, Error)
    again = from_wire(message.code, message.text, message.facts)
    assert type(again) is cls
    assert again.facts() == error.facts()
    assert str(again) == str(error)


@every_class
def test_an_error_can_be_pickled_by_the_users_own_tools(cls) -> None:  # type: ignore[no-untyped-def]
    again = pickle.loads(pickle.dumps(example(cls)))
    assert type(again) is cls
    assert str(again) == str(example(cls))


@every_class
def test_users_see_an_error_where_they_import_it_from(cls) -> None:  # type: ignore[no-untyped-def]
    assert getattr(zmqps.errors, cls.__name__) is cls
    assert cls.__name__ in zmqps.errors.__all__
    assert traceback.format_exception_only(example(cls))[0].startswith(f"zmqps.errors.{cls.__name__}: ")
    assert b"zmqps.errors." not in pickle.dumps(example(cls)), "a pickle is read wherever the classes are written"


def test_facts_are_exactly_those_of_the_class() -> None:
    with pytest.raises(TypeError, match="what"):
        LimitError("too much")
    with pytest.raises(TypeError, match="reason"):
        PSError()
    assert DeadlineError(operation="pull", seconds=2.0, waiting_for="x").seconds == 2.0


def test_a_key_error_reads_like_a_sentence() -> None:
    assert str(UnknownParameterError(name="w", hint="there is 'v'")) == "no parameter named 'w'; there is 'v'"


@given(
    st.integers(0, 60),
    st.text(max_size=10),
    st.dictionaries(
        st.sampled_from(["reason", "what", "got", "limit", "ours", "theirs", "x"]),
        st.none() | st.integers() | st.text(max_size=5) | st.booleans() | st.floats(),
        max_size=4,
    ),
)
def test_whatever_a_peer_sends_as_an_error_is_an_error(code, text, facts) -> None:  # type: ignore[no-untyped-def]
    assert isinstance(from_wire(code, text, facts), PSError)


def test_the_protocol_lists_every_error_with_its_number_and_facts() -> None:
    section = PROTOCOL.read_text().partition("## Errors")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE)
    documented = {int(code): (name, tuple(re.findall(r"`(\w+)`", facts))) for code, name, facts in rows}
    assert documented == {code: (cls.__name__, cls.fact_names) for code, cls in BY_CODE.items()}


@given(st.text(max_size=30))
def test_a_text_of_a_peer_is_raised_as_one_line_of_printable_characters(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)
    assert (printable(text) == text) == text.isprintable()
    for error in (
        from_wire(1, text, {"reason": text}),
        from_wire(4, text, {"waiting_for": text}),
        from_wire(999, text, {}),
    ):
        assert str(error).isprintable()
        assert all(fact.isprintable() for fact in error.facts().values() if isinstance(fact, str))


def test_an_error_that_names_very_many_can_be_delivered() -> None:
    long = DeadlineError(operation="step", seconds=1.0, waiting_for="worker, " * 2000)
    message = decode([bytes(frame) for frame in encode(Error.of(1, long))])
    assert isinstance(message, Error)
    again = from_wire(message.code, message.text, message.facts)
    assert isinstance(again, DeadlineError)
    assert again.waiting_for == long.waiting_for[:MAX_FACT_CHARS]
    for facts in ({f"f{i}": 1 for i in range(MAX_FACTS + 1)}, {"reason": "x" * (MAX_FACT_CHARS + 1)}):
        with pytest.raises(LimitError):
            decode([bytes(frame) for frame in encode(Error(1, 1, "x", facts))])


def test_one_is_counted_in_the_singular() -> None:
    assert [counted(number, "worker") for number in (0, 1, 2)] == ["0 workers", "1 worker", "2 workers"]
