"""The document of the page, and its policy."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from tests.tables import for_each
from zmqps.page.app import SCRIPTS, STYLES, read_document

OWN = [name for name in (*SCRIPTS, *STYLES) if not name.startswith("uplot/")]


def source(name: str) -> str:
    return files("zmqps.page").joinpath("static", *name.split("/")).read_text("utf-8")


def test_the_policy_lets_run_what_stands_in_the_document_and_nothing_else() -> None:
    document = read_document()
    directives = dict(part.split(" ", 1) for part in document.policy.split("; "))
    assert directives["default-src"] == "'none'"
    assert directives["connect-src"] == "'self'"
    text = document.body.decode()
    for directive, tag in (("script-src", "script"), ("style-src", "style")):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in inside]
        assert directives[directive].split() == [f"'sha256-{digest}'" for digest in digests]
    assert "unsafe" not in document.policy


def test_it_loads_nothing_from_anywhere() -> None:
    text = read_document().body.decode()
    markup = re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)
    assert re.findall(r'(?:src|href|action)="([^"]*)"', markup) == ["data:,"]
    assert [name for name in OWN if re.search(r"https?://|@import|url\(", source(name))] == []


@for_each("name", [name for name in OWN if name.endswith(".js")])
def test_what_others_have_chosen_cannot_become_markup_or_code(name: str) -> None:
    unsafe = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\.on[a-z]+ ?="
    assert re.search(unsafe, source(name)) is None


def test_the_library_comes_with_its_licence() -> None:
    assert "Permission is hereby granted" in source("uplot/LICENSE")
    assert source("uplot/uPlot.iife.min.js").startswith("/*! https://github.com/leeoniya/uPlot (v1.6.32) */")
