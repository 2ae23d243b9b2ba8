"""A codec's text: what is written is read, and nothing else is."""

from __future__ import annotations

import itertools
import re
import sys
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType
from typing import Any, ClassVar

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.codecs.cases import FOR_VALUES, SPECS
from tests.imports import ROOT
from tests.tables import for_each
from zmqps import codecs
from zmqps.codecs import registry
from zmqps.codecs.registry import MAX_SPEC_CHARS
from zmqps.errors import CodecError, ConfigurationError, ProtocolError


def options(cls: type[codecs.Codec]) -> dict[str, st.SearchStrategy[Any]]:
    """Return what each option of a codec may be."""
    found: dict[str, st.SearchStrategy[Any]] = {}
    for option in fields(cls):
        if "range" not in option.metadata:
            found[option.name] = st.booleans()
            continue
        allowed = option.metadata["range"]
        numbers = st.integers if allowed.kind is int else st.floats
        found[option.name] = numbers(allowed.at_least, allowed.at_most)
    return found


CODECS = st.one_of([st.builds(cls, **options(cls)) for cls in codecs.CODECS.values()])


@hypothesis.given(CODECS)
def test_a_codec_is_read_back_from_its_text(codec: codecs.Codec) -> None:
    assert len(codec.spec) <= MAX_SPEC_CHARS
    assert codecs.parse(codec.spec) == codec


@for_each("spec", SPECS)
def test_a_text_is_written_back_as_it_was(spec: str) -> None:
    assert codecs.parse(spec).spec == spec


@for_each("name", codecs.CODECS)
def test_a_name_alone_is_the_codec_with_its_defaults(name: str) -> None:
    assert codecs.parse(name) == getattr(codecs, name)()


@for_each(
    "text",
    [
        *("", "gzip", "RAW", " raw", "raw ", "raw:", "raw:x=1", "int8:", "int8:block", "int8:block=", "int8:block=15"),
        *(
            "int8:block=1048577",
            "int8:block=1e3",
            "int8:block=-16",
            "int8:block=+32",
            "int8:block= 32",
            "int8:block=3_2",
        ),
        *("int8:block=32,block=32", "int8:block=32,", "int8:stochastic=1", "int8:stochastic=True", "int8:name=x"),
        *("int8:block=\u0663\u0662", "int8:block=99999999999999999999", "int8:block=32:block=32", "int8:spec=1"),
        *("topk:fraction=0", "topk:fraction=1.5", "topk:fraction=nan", "topk:fraction=inf", "topk:fraction=1e999"),
        *("topk:fraction=--1", "topk:fraction=0.0.1", "topk:fraction=-0.1", "topk:fraction=e", "topk:error_feedback=1"),
        "topk:fraction=0." + "0" * 60 + "1",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        codecs.parse(text)


@hypothesis.given(st.one_of(st.text(), st.text("rawint8topk:=,.0123456789block")))
def test_any_text_is_a_codec_or_an_error(text: str) -> None:
    try:
        assert codecs.parse(codecs.parse(text).spec) == codecs.parse(text)
    except ProtocolError:
        pass


@for_each(
    "call",
    [
        lambda: codecs.int8(block=15),
        lambda: codecs.int8(block=16.0),
        lambda: codecs.int8(block=True),
        lambda: codecs.int8(block="16"),
        lambda: codecs.int8(stochastic=1),
        lambda: codecs.topk(0.0),
        lambda: codecs.topk(float("nan")),
        lambda: codecs.topk(None),
        lambda: codecs.onebit(1 << 21),
    ],
)
def test_options_out_of_range_are_refused(call) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        call()


def test_an_error_says_what_would_be_right() -> None:
    with pytest.raises(ConfigurationError, match="'int8': block must be a whole number from 16 to"):
        codecs.int8(block=1)
    with pytest.raises(CodecError, match=f"known are {', '.join(codecs.CODECS)}. .* in group 'zmqps.codecs': install"):
        codecs.parse("zip")


def test_what_values_may_travel_in_is_said_by_the_registry_alone() -> None:
    *others, last = sorted({codecs.parse(spec).name for spec in FOR_VALUES}, key=list(codecs.CODECS).index)
    assert codecs.for_values() == f"{', '.join(others)} or {last}"
    spelled = [
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("zmqps/**/*.py")
        if re.search(r"bf16\W{1,6}fp16", path.read_text()) and path.parent.name != "codecs"
    ]
    assert spelled == [], "say codecs.for_values(), or what these codecs have in common"


# --- what the documents say of them -----------------------------------------------------------------


def rows(document: str, head: str) -> list[list[str]]:
    """Return the cells of the table in a document that begins with a head."""
    lines = (ROOT / "docs" / document).read_text().partition(f"\n{head}\n")[2].splitlines()
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[1:])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_table_of_codecs_is_that_of_the_registry() -> None:
    named = set()
    for text, nbytes, _, for_values, accuracy in rows(
        "codecs.md", "| codec | bytes | what is lost | for values too | accuracy |"
    ):
        codec = codecs.parse(re.findall("`(.*?)`", text)[0])
        named.add(codec.name)
        assert for_values == ("no" if codec.error_feedback else "yes"), text
        assert float(nbytes) == pytest.approx(codec.encoded_nbytes(4810, "float32") / (4 * 4810), rel=0.03), text
        assert re.fullmatch(r"\d\d\.\d % \(\d\d\.\d\)", accuracy), f"{text}: docs/where.md says how to measure it"
    assert named == set(codecs.CODECS)
    portable = [name for name, cls in codecs.CODECS.items() if cls.portable and name != "raw"]
    encode_there = re.findall(r"\*\*Codecs\.\*\* (.*?) encode on the GPU", (ROOT / "docs/gpu.md").read_text())
    assert [re.findall(r"`(\w+)`", text) for text in encode_there] == [portable]


def test_the_tables_of_the_protocol_are_those_of_the_registry() -> None:
    found = {}
    for name, default, use in rows("protocol.md", "| codec | options (default) | for |"):
        found[name.strip("`")] = [*re.findall(r"`(\w+)`(?: \(([\d.]+)\))?", default)], use
    assert found == {
        name: (
            [(option.name, str(option.default) if "range" in option.metadata else "") for option in fields(cls)],
            "gradients" if cls.error_feedback else "gradients and values",
        )
        for name, cls in codecs.CODECS.items()
    }
    blobs = [name for cells in rows("protocol.md", "| codec | blob |") for name in re.findall(r"`(\w+)`", cells[0])]
    assert blobs == list(codecs.CODECS)


# --- codecs of other packages ------------------------------------------------------------------------


@dataclass(frozen=True)
class Halved(type(codecs.bf16())):  # type: ignore[misc]
    """A codec of somebody else."""

    name: ClassVar[str] = "halved"
    portable: ClassVar[bool] = False

    blur: float = codecs.real(0.5, 0.0, 1.0)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend that a package with these entry points is installed here."""
    module = ModuleType("somebodys_codecs")
    module.Halved = Halved
    module.number = 3
    monkeypatch.setitem(sys.modules, module.__name__, module)
    targets = {
        "halved": "somebodys_codecs:Halved",
        "other_name": "somebodys_codecs:Halved",
        "no_codec": "somebodys_codecs:number",
        "unfinished": "zmqps.codecs:FixedWidthCodec",
        "gaps": "zmqps.codecs:Codec",
        "broken": "no_such_module:Codec",
        "bf16": "somebodys_codecs:Halved",
    }
    points = EntryPoints(EntryPoint(name, target, "zmqps.codecs") for name, target in targets.items())
    monkeypatch.setattr(registry, "entry_points", lambda *, group: points.select(group=group))
    caches = registry.installed, registry._loaded, registry.parse
    for one in caches:
        one.cache_clear()
    yield
    for one in caches:
        one.cache_clear()


@pytest.mark.usefixtures("package")
def test_a_codec_of_a_package_is_found_by_its_name() -> None:
    codec = codecs.parse("halved:blur=0.25")
    assert codec == Halved(0.25)
    assert codecs.parse(codec.spec) is codec
    with pytest.raises(CodecError, match=f"known are {', '.join(codecs.CODECS)}, broken, gaps, halved, no_codec, "):
        codecs.parse("zip")


@pytest.mark.usefixtures("package")
def test_a_package_cannot_take_the_name_of_a_codec_of_ours() -> None:
    assert codecs.parse("bf16") == codecs.bf16()


@pytest.mark.usefixtures("package")
@for_each(
    "name, text",
    [
        ("no_codec", "entry point 'no_codec' of group 'zmqps.codecs' is 3; let it name a complete subclass of"),
        ("unfinished", "is a codec named None; give both the same name"),
        ("gaps", "let it name a complete subclass of zmqps.codecs.Codec"),
        ("other_name", "'other_name' .*is a codec named 'halved'; give both the same name"),
        ("broken", "'broken' .*cannot be loaded .ModuleNotFoundError.*; repair or remove its package on this node"),
    ],
)
def test_what_a_package_declares_must_be_a_codec(name: str, text: str) -> None:
    for _ in range(2):  # the second time from memory
        with pytest.raises(CodecError, match=text):
            codecs.parse(name)


@for_each("name", ["antigravity", "this", "os.path", "zmqps.codecs.raw:Raw", "tests.victim:main", "../x"])
def test_a_name_from_outside_imports_nothing(name: str) -> None:
    registry.installed()  # which imports what it reads metadata with
    before = set(sys.modules)
    with pytest.raises(CodecError):
        codecs.parse(name)
    assert set(sys.modules) == before
