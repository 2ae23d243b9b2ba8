"""push: send the gradients of a model; done when the servers have applied them."""

from __future__ import annotations

from bench.options import transfer_command

command = transfer_command("push", "Send the gradients of a model; done when the servers have applied them.")
