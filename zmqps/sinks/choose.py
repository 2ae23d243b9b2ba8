"""Which sinks there are, by what ``--values`` says of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from zmqps.errors import ConfigurationError, PSError
from zmqps.sinks.jsonl import JsonLines
from zmqps.sinks.mlflow import MLflow
from zmqps.sinks.sink import Sink
from zmqps.sinks.tensorboard import TensorBoard
from zmqps.sinks.wandb import WeightsAndBiases

#: By the word before the colon.
KINDS: dict[str, Callable[[str], Sink]] = {
    "jsonl": JsonLines,
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}
FORMS = "jsonl:FILE, tensorboard:DIR, mlflow:URI, wandb:PROJECT or MODULE:FACTORY"


def check_texts(texts: Sequence[str]) -> None:
    """Raise an error for what no sink is called by."""
    for text in texts:
        kind, colon, rest = text.partition(":")
        if not (kind and colon and rest):
            raise ConfigurationError(f"--values {text!r:.200} names nothing: write {FORMS}")


def open_sinks(texts: Sequence[str]) -> dict[str, Sink]:
    """Return sinks by what they are called.

    Raises
    ------
    ConfigurationError
        There is none of this name, it cannot be written to, or it needs what is not installed.
    """
    check_texts(texts)
    found: dict[str, Sink] = {}
    try:
        for text in dict.fromkeys(texts):
            found[text] = _open(text)
    except BaseException:
        for sink in found.values():
            sink.close()
        raise
    return found


def _open(text: str) -> Sink:
    kind, _, rest = text.partition(":")
    try:
        return KINDS[kind](rest) if kind in KINDS else _own(text, kind, rest)
    except PSError:
        raise
    except Exception as error:
        raise ConfigurationError(f"--values {text} cannot be used: {type(error).__name__}: {error}") from error


def _own(text: str, module: str, factory: str) -> Sink:
    """Return what a function of the user's returns, which is called without arguments."""
    try:
        make: Any = getattr(importlib.import_module(module), factory)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigurationError(f"--values {text} is not to be found ({error}): write {FORMS}") from error
    sink: Any = make()
    lacks = [name for name in ("values", "flush", "close") if not callable(getattr(sink, name, None))]
    if lacks:
        raise ConfigurationError(f"--values {text} makes a {type(sink).__name__}, which lacks {', '.join(lacks)}()")
    result: Sink = sink
    return result
