"""The documents are true to the tree: their links, their make targets."""

from __future__ import annotations

import re

from tests.imports import ROOT


def test_links_in_the_documents_lead_to_files() -> None:
    documents = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
        *ROOT.glob("bench/**/*.md"),
    ]
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in documents
        for target in re.findall(r"\]\(([^)#\s]+)", document.read_text())
        if "://" not in target and not target.startswith("mailto:") and not (document.parent / target).exists()
    ]
    assert broken == []


def test_make_targets_named_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (document.name, target)
        for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
        for code in re.findall(r"```.*?```|`[^`]+`", document.read_text(), re.DOTALL)
        for target in re.findall(r"^`?make ([a-z][a-z-]*)", code, re.MULTILINE)
    }
    assert [f"{document}: make {target}" for document, target in sorted(named) if target not in targets] == []
