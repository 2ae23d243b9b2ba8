"""A picture of ``zmqps top``, drawn without a terminal: for documents."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from zmqps.top.app import Questions, Top

#: What Textual writes into its pictures so that they look the same everywhere; ours must download nothing.
_FONTS = re.compile(r"@font-face\s*\{[^}]*\}\s*")


def screenshot(questions: Questions, keys: Sequence[str] = (), columns: int = 80, lines: int = 24) -> str:
    """Return what a terminal would show as SVG.

    Parameters
    ----------
    questions
        What can be asked of a cluster: `zmqps.cli.top.questions` has those of a running one.
    keys
        Pressed before, by Textual's names.
    columns, lines
        The size of the terminal.
    """
    return asyncio.run(_drawn(questions, keys, columns, lines))


async def _drawn(questions: Questions, keys: Sequence[str], columns: int, lines: int) -> str:
    app = Top(questions, every_s=None)
    async with app.run_test(size=(columns, lines)) as pilot:
        await app.refresh_view()
        for key in keys:
            await pilot.press(key)
            await app.workers.wait_for_complete()
        await pilot.pause()
        return _FONTS.sub("", app.export_screenshot(title="zmqps top"))
