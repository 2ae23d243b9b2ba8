"""The one document of the page, and its policy: a browser may only run its own scripts."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from importlib.resources import files

#: In this order.
SCRIPTS = ("uplot/uPlot.iife.min.js", "words.js", "plots.js", "panels.js", "page.js")
STYLES = ("uplot/uPlot.min.css", "page.css")


@dataclass(frozen=True, slots=True)
class Document:
    """A document and its policy."""

    body: bytes
    policy: str


def read_document() -> Document:
    """Return the files of ``static/`` in one, with the policy that lets exactly these scripts and styles run."""
    styles, scripts = [_read(name) for name in STYLES], [_read(name) for name in SCRIPTS]
    text = _read("page.html")
    text = text.replace("<!-- styles -->", "\n".join(f"<style>{style}</style>" for style in styles))
    text = text.replace("<!-- scripts -->", "\n".join(f"<script>{script}</script>" for script in scripts))
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Document(text.encode(), policy)


def _read(name: str) -> str:
    return files("zmqps.page").joinpath("static", *name.split("/")).read_text("utf-8")


def _hashes(texts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
