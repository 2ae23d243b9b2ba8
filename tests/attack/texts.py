"""Attackers whose words end up in logs, statuses and terminals."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import replace

from tests.attack.attackers import attacker
from tests.attack.identities import answered
from tests.attack.stranger import Stranger, Target, Until, hello
from zmqps.core.protocol.messages import EndJob, Enter, Error, Heartbeat, Leave, Welcome

#: A line that somebody else has written, the title of a window, a cleared screen.
FORGED = "x\n2026-01-01 00:00:00 zmqps.coordinator ERROR: forged line\r\x1b[2J\x1b]0;owned\x07\u202e\x9b31m"


@attacker
def escapes(target: Target, until: Until, counts: Counter[str]) -> None:
    """Put new lines and terminal escapes into every text there is."""
    while until.pause(0.05):
        for endpoint in (target.coordinator, *target.servers):
            with Stranger(endpoint) as stranger:
                said = replace(hello("observer", secrets.token_bytes(16), name=FORGED), host=FORGED, endpoint=FORGED)
                counts[answered(stranger.ask(said, Welcome, Error, attempts=1))] += 1
                stranger.send(replace(said, magic=FORGED))
                stranger.send(replace(said, role=FORGED))
                stranger.send(replace(said, job=FORGED))
                stranger.send(Heartbeat({FORGED: FORGED, "bytes_sent": FORGED}))
                stranger.send(EndJob(1, FORGED))
                stranger.send(Enter(2, FORGED))
                stranger.send(Error(0, 40, FORGED, {"reason": FORGED}))
                stranger.send(Leave(FORGED))
                while (answer := stranger.receive(0.02)) is not None:
                    counts[answered(answer)] += 1


@attacker
def refusals(target: Target, until: Until, counts: Counter[str]) -> None:
    """Be refused as fast as it goes, each time with other words, for the logs."""
    strangers = [Stranger(endpoint) for endpoint in (target.coordinator, *target.servers)]
    while until:
        for stranger in strangers:
            words = secrets.token_hex(1000)
            counts["sent"] += stranger.send(replace(hello("observer", bytes(16)), magic=words, role=words))
            counts["answers"] += stranger.drain() if counts["sent"] % 64 < 3 else 0
