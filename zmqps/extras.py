"""The command that installs a missing extra of zmqps: from a clone, a file or an index, wherever zmqps came from."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["advice", "lacks_extra"]


def advice(extra: str) -> str:
    """Return the command that installs an extra, as ``pip install '/home/me/zmqps[watch]'``.

    The name of the package alone would not help users who installed it from a clone.
    """
    origin = _origin()
    url, vcs = str(origin.get("url", "")), origin.get("vcs_info", {})
    place = Path(unquote(urlsplit(url).path))
    if url.startswith("file:") and (place.suffix == ".whl" or (place / "pyproject.toml").exists()):
        flag = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f"pip install {flag}{shlex.quote(f'{place}[{extra}]')}"
    if vcs:
        url = f"{vcs.get('vcs')}+{url}@{vcs.get('commit_id')}"
        return f"pip install {shlex.quote(f'zmqps[{extra}] @ {url}')}"
    return f"pip install 'zmqps[{extra}]'"


def lacks_extra(extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error of a module that is called like its extra, whose packages are not installed; says the extra."""
    lacks = f"zmqps.{extra} needs {error.name}, which is not installed: {advice(extra)}"
    return ModuleNotFoundError(lacks, name=error.name)


def _origin() -> dict[str, Any]:
    """Return what pip has written down of where zmqps came from; nothing where that was an index."""
    try:
        text = distribution("zmqps").read_text("direct_url.json")
    except PackageNotFoundError:  # it runs in place
        return {"url": Path(__file__).parents[1].as_uri(), "dir_info": {"editable": True}}
    try:
        origin = json.loads(text or "{}")
    except ValueError:
        return {}
    return origin if isinstance(origin, dict) else {}
