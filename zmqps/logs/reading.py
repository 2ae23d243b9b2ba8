"""What the output of a script means, and a filter on log entries."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from zmqps.errors import ConfigurationError
from zmqps.logs.lines import RANKS, Entry

#: What a script's own lines look like when they are no plain output: Python's logging, warnings and crashes.
_FOREIGN = (
    (re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL):"), ""),
    (re.compile(r"\S+:\d+: \w*Warning: "), "warning"),
    (re.compile(r"Fatal Python error: "), "critical"),
)
_TRACEBACK = "Traceback (most recent call last):"
#: Its prefix in an exception group.
_FRAME = " +|"
#: The beginning of the note of a zmqps error, which follows its traceback.
_NOTE = "zmqps explain "

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|[smhdw])")


class Levels:
    """Tells the level of each line that a script prints.

    It is ``info``, unless it looks like a traceback, a crash, a warning or a line of Python's `logging`.
    """

    def __init__(self) -> None:
        self._in_traceback = False
        self._after_traceback = False

    def of(self, message: str) -> str:
        """Return the level of the next line."""
        if message.lstrip(_FRAME).endswith(_TRACEBACK):
            self._in_traceback = True
            return "error"
        if self._in_traceback:
            self._in_traceback = not message or message.startswith(" ")
            self._after_traceback = not self._in_traceback
            return "error"
        after, self._after_traceback = self._after_traceback, False
        if after and message.startswith(_NOTE):
            return "error"
        for form, level in _FOREIGN:
            if match := form.match(message):
                return level or match[1].lower()
        return "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which entries are shown.

    Parameters
    ----------
    since
        None before this time; None: all.
    level
        None below this level.
    job
        Only those that are about this job.
    """

    since: datetime | None = None
    level: str = "debug"
    job: str | None = None

    def has(self, entry: Entry) -> bool:
        """Return whether it is wanted."""
        return (
            (self.since is None or entry.at >= self.since)
            and RANKS[entry.level] >= RANKS[self.level]
            and (self.job is None or entry.fields.get("job") == self.job)
        )


def parse_since(text: str, now: datetime) -> datetime:
    """Return the time that is meant by how long ago it is, by a date and time, or by a time of day.

    Parameters
    ----------
    text
        ``90s``, ``5m``, ``1h30m``, ``2d``; ``2025-11-21T01:24`` (of this host, unless an offset is there);
        ``2025-11-21``; ``01:24``, the last time that it was that late.
    now
        With a time zone.

    Raises
    ------
    ConfigurationError
        It is none of these.
    """
    text = text.strip()
    if text and not _DURATION.sub("", text):
        try:
            return now - timedelta(seconds=sum(float(n) * _SECONDS[unit] for n, unit in _DURATION.findall(text)))
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)
    try:
        if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text):
            at = datetime.fromisoformat(f"{now:%Y-%m-%d}T{text}").astimezone(now.tzinfo)
            return at if at <= now else at - timedelta(days=1)
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"{text!r} is no time: write how long ago (90s, 5m, 1h30m, 2d), a date and time (2025-11-21T01:24), or a "
            "time of day (01:24)"
        ) from None


def chosen(names: Collection[str], wanted: Collection[str]) -> tuple[list[str], list[str]]:
    """Return which logs are meant, and which wishes mean none.

    A wish is a log's name, that without its host (``server-0`` for ``server-0@host-b``), what the status calls the node
    (``server 0``), or a role: ``worker``.
    """

    def meant(name: str) -> set[str]:
        node = name.partition("@")[0]
        role, dash, number = node.rpartition("-")
        return {name, node, *([role, f"{role} {number}"] if dash and number.isdecimal() else [])}

    unknown = [wish for wish in wanted if not any(wish in meant(name) for name in names)]
    return [name for name in sorted(names) if not wanted or not meant(name).isdisjoint(wanted)], unknown
