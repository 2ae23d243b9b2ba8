"""pull: fetch the values of a model."""

from __future__ import annotations

from bench.options import transfer_command

command = transfer_command("pull", "Fetch the values of a model.")
