"""Phrases that plain English does without, and long lines: where texts of the project still have them.

::

    python -m tests.prose              # how many each room of the package, and each document, has
    python -m tests.prose zmqps/core   # where, below a path
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.imports import ROOT

#: The texts that are checked.
TOPS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "deploy", "examples", "zmqps")
#: Not wrapped: it is written by ``zmqps explain --all``, an error's text on one line.
GENERATED = "docs/errors.md"
WIDTH = 120

_DUTIES = (
    "begin|come|cut|do|end|follow|give|go|have|hold|join|keep|learn|leave|move|read|run|say|start|stop|take|train|write"
)
#: A phrase -> what to write in its place. Of people, only "user who" is fine.
INSTEAD = {
    r"(?<!\buser )(?<!\busers )\bwho(?:m|ever)?\b": "a noun: the worker that …, a peer that …; nodes are 'it'",
    r"\bstands?\b(?! out\b| still\b)": "is, means, follows, replaces",
    r"\b(?:of ours|whose it is)\b": "of zmqps, its owner",
    r"\banew\b": "again, from scratch, re-",
    r", say (?!how|what|where|whether|which)[\w`]": "such as",
    r"\b(?:no|some|any|every)body\b": "no worker, a peer, any process",
    r"\bis nothing (?:a|an|that)\b": "cannot be",
    r"\bthat (?:is|was|are|were) to (?!be\b)\w+": "will, should",
    r"\bas (?:soon|long) as that is\b": "once",
    r"\b(?:lies|lie|lay|lain)\b": "is, is stored",
    r"\b(?:has|have|had|is|are|was|were|be) gone\b": "has left, has ended, is lost, was removed",
    r"\b(?:is|are|was|were|be|been|being|never|not) told\b": "is informed, is sent, learns",
    r"\bso many\b": "that many, this many",
    r"\bthose of\b.*\bthose of\b|\bthat of\b.*\bthat of\b": "the noun, once",
    r"\bbeside\b": "besides, next to, with",
    r"\b(?:is|are|was|were) to be\b": "should, will, must",
    rf"\b(?:is|are|was|were) to (?:{_DUTIES})\b": "should, will, must",
    r"(?<!there )\b(?:is|are|was|were) no (?!(?:longer|more|other|different|less|better|larger)\b)\w": "is not a",
    r"\b(?:go|goes|going|gone|went) on\b": "continue, run",
    r"\b(?:this|that|each) one's\b": "its, or the noun",
    r"\ban? \w+(?: \w+)? of (?:its|their|your|my|our) own\b(?! [\w-]+s\b)": "its own, a separate",
    r"(?<!there )\b(?:is|are) (?-i:none)\b(?! of (?:its|the|these|them)\b)": "is not one, is invalid, is missing",
}
PATTERNS = {re.compile(phrase, re.IGNORECASE): instead for phrase, instead in INSTEAD.items()}

#: What is no prose: a name in backticks, a replacement field of an f-string, a string that is one lower-case word.
CODE = re.compile(r"`+[^`\n]+`+")
FIELD = re.compile(r"\{[^{}\n]*\}")
KEY = re.compile(r"""["'][a-z_]+["']""")
#: What a line is not broken in: code, an image, a link's target.
UNBROKEN = re.compile(r"`+[^`]+`+|!\[[^]]*\]\([^)]*\)|\]\([^)]*\)")


class Place(NamedTuple):
    """A phrase that is not plain, or a line that is long: where it is, and what to write instead."""

    path: str
    line: int
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text:.200}  [write: {self.instead}]"


def places(path: Path) -> Iterator[Place]:
    """Yield where a document has such phrases; or a module, in comments, docstrings and other strings."""
    name = path.relative_to(ROOT).as_posix()
    for number, text, prose in _texts(path):
        for offset, (line, words) in enumerate(zip(text.split("\n"), prose.split("\n"), strict=True)):
            for pattern, instead in PATTERNS.items():
                if found := pattern.search(words):
                    yield Place(name, number + offset, line.strip(), f"for {found[0]!r}, {instead}")


def long_lines(path: Path) -> Iterator[Place]:
    """Yield the lines of a document's prose that are longer than `WIDTH` and can be broken."""
    name, in_code = path.relative_to(ROOT).as_posix(), False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        in_code ^= line.lstrip().startswith("```")
        text = UNBROKEN.sub("x", line).lstrip(" -*>")
        if len(line) > WIDTH and not in_code and " " in text and not text.startswith(("|", "<", "#")):
            yield Place(name, number, line, f"lines of at most {WIDTH} characters; this one has {len(line)}")


def _texts(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the number of the first line of each text of a file, the text, and the same without what is code in it."""
    source = path.read_text()
    if path.suffix != ".py":
        yield 1, source, CODE.sub("0", source)
        return
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds and not KEY.fullmatch(token.string):
            fields = FIELD if "f" in token.string.lower().partition(token.string[-1])[0] else CODE
            yield token.start[0], token.string, CODE.sub("0", fields.sub("0", token.string))


def files(below: str) -> list[Path]:
    """Return a file, or the modules and documents of a folder."""
    top = ROOT / below
    return [top] if top.is_file() else sorted(path for end in ("py", "md") for path in top.glob(f"**/*.{end}"))


def found(below: str) -> list[Place]:
    """Return the places in a file, or in all modules and documents of a folder."""
    wrong = [place for path in files(below) for place in places(path)]
    documents = [path for path in files(below) if path.suffix == ".md" and path != ROOT / GENERATED]
    return wrong + [place for path in documents for place in long_lines(path)]


def main() -> None:
    """Print where phrases are, or how many by room and document."""
    if len(sys.argv) > 1:
        print(*found(sys.argv[1]), sep="\n")
        return
    depth = {"zmqps/core": 3, "zmqps": 2, "docs": 2}
    counts: Counter[str] = Counter()
    for place in (place for name in TOPS for place in found(name)):
        parts = place.path.split("/")
        counts["/".join(parts[: next((d for top, d in depth.items() if place.path.startswith(top)), 1)])] += 1
    for name, count in sorted(counts.items()):
        print(f"{count:5} {name}")


if __name__ == "__main__":
    main()
