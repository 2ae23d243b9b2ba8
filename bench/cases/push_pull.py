"""push_pull: send gradients and fetch the values after them, in one round trip."""

from __future__ import annotations

from bench.options import transfer_command

command = transfer_command("push_pull", "Send gradients and fetch the values after them, in one round trip.")
