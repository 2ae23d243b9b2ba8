"""What is read of other processes."""

from __future__ import annotations

import subprocess
import sys

from bench.processes import BusyTime

WORK = """
import sys, time
sys.stdin.readline()
while time.process_time() < 0.2: pass
print("done", flush=True)
sys.stdin.readline()
"""


def test_the_processor_time_of_another_process_is_counted_from_a_moment_on() -> None:
    with subprocess.Popen([sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        busy = BusyTime([process.pid])
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"done\n"
        assert 0.0 < busy.seconds() < 1.0
        busy.restart()
        assert busy.seconds() < 0.1
