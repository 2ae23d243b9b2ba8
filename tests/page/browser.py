"""A real browser: Debian's Chromium without a window, led by Playwright.

It notes all that the page asks for and complains of.

::

    with Browser() as browser:
        browser.open("http://127.0.0.1:5580/")
        browser.until("document.title.includes('training')")
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.pace import allow

T = TypeVar("T")

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
#: Seconds that anything may take on a busy machine.
PATIENCE = allow(40.0)


@functools.cache
def missing() -> str:
    """Return why there is no browser here, or an empty text."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "not installed: playwright"
    return "" if _program() else f"not installed: {NAMES[0]}"


def _program() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One tab, on a thread of its own, as Playwright leaves a loop running in the thread that it is used by.

    Parameters
    ----------
    scheme
        Which colours the user prefers, ``light`` or ``dark``.
    width, height
        The window's, in pixels.
    """

    def __init__(self, scheme: str = "light", width: int = 1280, height: int = 900) -> None:
        self.complaints: list[str] = []
        self.asked: list[str] = []  # addresses
        self._options: dict[str, Any] = {
            "color_scheme": scheme, "viewport": {"width": width, "height": height}, "service_workers": "block",
        }  # fmt: skip
        self._thread = ThreadPoolExecutor(1, "browser")
        try:
            self._do(self._start)
        except BaseException:
            self._thread.shutdown()
            raise

    def _start(self) -> None:
        from playwright.sync_api import sync_playwright

        self._playwright = sync_playwright().start()
        try:
            args = ["--disable-gpu", "--disable-dev-shm-usage"] + ["--no-sandbox"] * (os.geteuid() == 0)
            self._browser = self._playwright.chromium.launch(
                executable_path=_program(), args=args, timeout=1000 * PATIENCE
            )
        except BaseException:
            self._playwright.stop()
            raise
        context = self._browser.new_context(**self._options)
        context.set_default_timeout(1000 * PATIENCE)
        self._page = context.new_page()
        self._page.on("console", lambda said: self.complaints.append(f"{said.type}: {said.text}"))
        self._page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self._page.on("request", lambda request: self.asked.append(request.url))

    def _do(self, what: Callable[[], T]) -> T:
        return self._thread.submit(what).result(2 * PATIENCE)

    def open(self, url: str) -> int:
        """Open an address; return the answer's status."""

        def go() -> int:
            answer = self._page.goto(url)
            return answer.status if answer else 0

        return self._do(go)

    def until(self, expression: str, seconds: float = PATIENCE) -> None:
        """Return when an expression of JavaScript is true.

        Playwright's own ``wait_for_function`` is code from a text, which the page's policy forbids.
        """
        look = f"""async () => {{
            const until = performance.now() + {1000 * seconds};
            while (!({expression})) {{
                if (performance.now() > until) return false;
                await new Promise((done) => setTimeout(done, 20));
            }}
            return true;
        }}"""
        assert self.find(look), f"never true: {expression}; the page says: {self.text('body')[:3000]}"

    def find(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        return self._do(lambda: self._page.evaluate(expression))

    def text(self, selector: str) -> str:
        """Return what is to be read in an element."""
        return self._do(lambda: self._page.inner_text(selector))

    def click(self, selector: str) -> None:
        """Click an element."""
        self._do(lambda: self._page.click(selector))

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write what is to be seen as PNG."""
        self._do(lambda: self._page.screenshot(path=path, full_page=whole, animations="disabled"))

    def draw(self, drawing: str, path: Path) -> None:
        """Write an SVG as PNG."""

        def draw() -> None:
            self._page.set_content(f"<body style='margin:0'>{drawing}</body>")
            self._page.locator("svg").first.screenshot(path=path, omit_background=True)

        self._do(draw)

    def cookies(self) -> list[dict[str, Any]]:
        """Return the cookies."""
        return self._do(lambda: [dict(one) for one in self._page.context.cookies()])

    def close(self) -> None:
        """End the browser."""
        try:
            self._do(lambda: (self._browser.close(), self._playwright.stop()))
        finally:
            self._thread.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
