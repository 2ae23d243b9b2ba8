"""Traces made by hand: workers that push to a server, each stage as long as told."""

from __future__ import annotations

from typing import Any

from zmqps.trace.merge import Process, Span, Trace, wires_of


class Made:
    """One server and some workers; times are in microseconds."""

    def __init__(self, workers: int = 1) -> None:
        self.server = Process("server 0 (s)", "here", label="server 0")
        self.workers = [
            Process(f"worker {n} (w)", "here", label=f"worker {n}", incarnation=f"{n + 1:08x}") for n in range(workers)
        ]
        self._numbers = 0

    def span(self, process: Process, name: str, role: str, begin: float, end: float, **facts: Any) -> None:
        thread = None if name in ("queue", "push", "pull", "push_pull") else 1
        span = Span(name=name, role=role, begin_us=begin, end_us=end, thread=thread, facts=facts)
        process.spans.append(span)

    def push_pull(
        self,
        worker: int,
        begin: float,
        *,
        check: float = 0.0,
        encode: float = 0.0,
        there: float = 1.0,
        apply: float = 1.0,
        until: float | None = None,
        commit: float = 0.0,
        back: float = 1.0,
        nbytes: int = 1000,
        version: int = 1,
        step: int = 0,
    ) -> float:
        """Add one; ``until``: when the answer leaves, after the commit of its step. Return when it was over."""
        who, at = self.workers[worker], begin
        self._numbers += 1
        label = {"request": f"{who.incarnation}-{self._numbers}"}
        self.span(who, "check", "worker", at, at + check)
        at += check
        self.span(who, "encode", "codec", at, at + encode)
        at += encode
        self.span(who, "queue", "worker", begin, at, message="Push", slice=0, step=step, **label)
        self.span(who, "send", "worker", at, at, message="Push", nbytes=nbytes, **label)
        at += there
        served = at + apply
        self.span(self.server, "receive", "server", at, served)
        self.span(self.server, "serve", "server", at, served, message="Push", **label)
        if until is None:  # else it is kept until its step is complete
            self.span(self.server, "apply", "server", at, served)
        at = served
        if until is not None:
            at = until
            if commit:
                self.span(self.server, "commit", "server", until - commit, until)
                self.span(self.server, "apply", "server", until - commit, until)
        self.span(self.server, "reply", "server", at, at, message="Values", nbytes=nbytes, **label)
        at += back
        self.span(who, "receive", "worker", at, at)
        self.span(who, "land", "worker", at, at, message="Values", version=version, **label)
        self.span(who, "push_pull", "operation", begin, at)
        return at

    def trace(self) -> Trace:
        """Return all of it."""
        processes = [self.server, *self.workers]
        for process in processes:
            process.spans.sort(key=lambda span: span.begin_us)
        return Trace(processes, wires_of(processes), {})
