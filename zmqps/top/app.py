"""``zmqps top``: the cluster in a terminal, refreshed every second, or as a picture for documents."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from zmqps.errors import PSError, ago, seconds
from zmqps.top.columns import job_columns, node_columns
from zmqps.top.model import Model, NodeRow, details, health_sentence, read
from zmqps.top.source import EVERY_S, Source

#: Lines of sentences above the tables, and rows of jobs: the rest of 24 lines is for nodes.
MOST_SENTENCES, MOST_JOBS = 3, 5
KEYS = """\
enter   all that is known of the node
l       the end of its log, where it was started from this directory
s       what its threads are doing: names, files, lines
h       let every node answer, and show how soon each has
j       the next job: its nodes alone, then those of all again
v       draw the next of the logged values
?       this
q       quit; in a window like this one: back

Times of a step are the last second's mean. A worker is slow whose steps take
1.5 times as long as the median of the others of its job, or that comes last to
step after step. A node is silent that has not been heard for 3 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What can be asked of a cluster; each is called in a thread, and may raise `zmqps.errors.PSError`.

    Parameters
    ----------
    view
        As `zmqps.nodes.inquiry.ask_view`.
    health
        As `zmqps.nodes.inquiry.ask_health`.
    stacks
        What the threads of a node are doing, in lines.
    log
        The end of a node's log, in lines.
    """

    view: Callable[[], Mapping[str, Any]]
    health: Callable[[], Mapping[str, Any]]
    stacks: Callable[[NodeRow], Sequence[str]]
    log: Callable[[NodeRow], Sequence[str]]


class Window(ModalScreen[None]):
    """Lines over the whole terminal, until a key closes them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "back"),
        Binding("home,g", "scroll('home')", "top", show=False),
        Binding("end,G", "scroll('end')", "end", show=False),
    ]
    DEFAULT_CSS = """
    Window { background: $surface; }
    Window #title { background: $primary; color: $text; text-style: bold; height: 1; }
    Window VerticalScroll { height: 1fr; }
    """

    def __init__(self, title: str, lines: Sequence[str], *, at_end: bool = False) -> None:
        super().__init__()
        self._title = title
        self._lines = lines
        self._at_end = at_end

    def compose(self) -> ComposeResult:
        """Build the layout."""
        yield Static(Text(self._title, no_wrap=True), id="title")
        with VerticalScroll():
            yield Static(Text("\n".join(self._lines)), id="lines")
        yield Footer()

    def on_mount(self) -> None:
        """Begin at the end, if that is what is looked for."""
        scroll = self.query_one(VerticalScroll)
        scroll.focus()
        if self._at_end:
            self.call_after_refresh(scroll.scroll_end, animate=False)

    def show(self, title: str, lines: Sequence[str]) -> None:
        """Show other lines."""
        self.query_one("#title", Static).update(Text(title, no_wrap=True))
        self.query_one("#lines", Static).update(Text("\n".join(lines)))
        if self._at_end:
            self.call_after_refresh(self.query_one(VerticalScroll).scroll_end, animate=False)

    def action_scroll(self, where: str) -> None:
        """Go to the first line or the last."""
        scroll = self.query_one(VerticalScroll)
        (scroll.scroll_home if where == "home" else scroll.scroll_end)(animate=False)


class Nodes(DataTable[Text]):
    """The table of nodes: a row is chosen with the arrows."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "node")]


class Top(App[None]):
    """The live view.

    Parameters
    ----------
    questions
        What can be asked.
    address
        The coordinator's endpoint, as long as it has not said its own.
    every_s
        From one view to the next; None: only when `refresh_view` is called.
    """

    TITLE = "zmqps top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "log", "log"),
        Binding("s", "stacks", "stacks"),
        Binding("h", "health", "health"),
        Binding("j", "job", "job"),
        Binding("v", "value", "value"),
        Binding("question_mark", "keys", "keys", key_display="?"),
        Binding("q", "quit", "quit"),
    ]
    CSS = """
    Screen { layout: vertical; }
    #headline { height: 1; background: $primary; color: $text; text-style: bold; }
    #sentences { height: auto; max-height: 4; }
    #jobs { height: auto; max-height: 6; background: $surface; }
    #nodes { height: 1fr; margin-top: 1; background: $surface; }
    DataTable > .datatable--header { background: $surface; color: $text-muted; text-style: none; }
    """

    def __init__(self, questions: Questions, address: str = "", every_s: float | None = EVERY_S) -> None:
        super().__init__()
        self._questions = questions
        self._address = address
        self._every_s = every_s
        self._source = Source(questions.view)
        self._model: Model | None = None
        self._job = ""  # whose nodes are shown; empty: all
        self._value = ""  # which logged value is drawn; empty: the loss
        self._rows: tuple[NodeRow, ...] = ()
        self._asking = False

    def compose(self) -> ComposeResult:
        """Build the layout."""
        yield Static(Text(f"zmqps top · {self._address}", no_wrap=True), id="headline")
        yield Static(Text("asking the coordinator …", "dim"), id="sentences")
        yield DataTable(id="jobs", cursor_type="none", cell_padding=0, zebra_stripes=False)
        yield Nodes(id="nodes", cursor_type="row", cell_padding=0, zebra_stripes=False)
        yield Footer()

    async def on_mount(self) -> None:
        """Ask for the first view, and then every second."""
        self.query_one("#jobs", DataTable).can_focus = False
        self.query_one("#nodes", DataTable).focus()
        if self._every_s is not None:
            self.set_interval(self._every_s, self._tick)
            self._tick()

    def on_resize(self) -> None:
        """Leave columns out that do not fit."""
        self._show()

    def _tick(self) -> None:
        """Ask for a view, unless the last question is still open; what is shown says how old it is."""
        if not self._asking:
            self.run_worker(self.refresh_view(), group="view")
        if self._source.trouble:
            self._show()

    async def refresh_view(self) -> None:
        """Ask for a view, and show it."""
        self._asking = True
        try:
            if await self._source.update():
                self._model = read(self._source.view, self._value)
        finally:
            self._asking = False
        self._show()

    # --- what is shown ---------------------------------------------------------------------------

    def _show(self) -> None:
        if self._exit or not self.screen_stack or not self.screen_stack[0].query("#headline"):
            return  # not yet, or no more
        model, trouble = self._model, self._source.trouble
        endpoint = (model.endpoint if model is not None else "") or self._address
        headline = f"zmqps top · {endpoint}{f' · {model.headline}' if model is not None else ''}"
        base = self.screen_stack[0]
        base.query_one("#headline", Static).update(Text(headline, no_wrap=True, overflow="ellipsis"))
        base.query_one("#sentences", Static).update(self._sentences(trouble))
        if model is None:
            return
        self._fill(base.query_one("#jobs", DataTable), job_columns(self.size.width, model.jobs), model.jobs[:MOST_JOBS])
        self._rows = model.of_job(self._job)
        self._fill(base.query_one("#nodes", DataTable), node_columns(self.size.width, self._rows), self._rows)

    def _sentences(self, trouble: str) -> Text:
        lines: list[tuple[str, str]] = [(trouble, "bold red")] if trouble else []
        if self._model is not None:
            lines += [(text, "bold yellow") for text in self._model.slow]
            lines += [(text, "bold red" if alarming else "") for text, alarming in self._model.waits]
            if not lines:
                lines.append(("no node is awaited", "dim"))
        elif not lines:
            lines.append(("asking the coordinator …", "dim"))
        more = len(lines) - MOST_SENTENCES
        if more > 0:
            lines = [*lines[:MOST_SENTENCES], (f"… and {more} more", "dim")]
        return Text("\n").join(Text(text, style, no_wrap=True, overflow="ellipsis") for text, style in lines)

    def _fill(self, table: DataTable[Text], columns: Sequence[Any], rows: Sequence[Any]) -> None:
        """Show rows; the cursor stays at the row where it was."""
        row, top = table.cursor_row, table.scroll_y
        keys = list(table.rows)
        chosen = keys[row].value if 0 <= row < len(keys) else None
        table.clear(columns=True)
        for column in columns:
            table.add_column(
                Text(column.title.rjust(column.width) if column.right else column.title), width=column.width
            )
        for one in rows:
            cells = [Text(f"{column.text(one):{'>' if column.right else '<'}{column.width}}"[: column.width],
                          column.style(one)) for column in columns]  # fmt: skip
            table.add_row(*cells, key=getattr(one, "key", one.name))
        wanted = next((n for n, key in enumerate(table.rows) if key.value == chosen), min(row, len(rows) - 1))
        if rows and table.cursor_type == "row":
            table.move_cursor(row=max(0, wanted), animate=False, scroll=False)
            table.scroll_to(y=top, animate=False)

    @property
    def chosen(self) -> NodeRow | None:
        """The node that the cursor is at."""
        row = self.screen_stack[0].query_one("#nodes", DataTable).cursor_row
        return self._rows[row] if 0 <= row < len(self._rows) else None

    # --- keys -----------------------------------------------------------------------------------

    @on(DataTable.RowSelected, "#nodes")
    def action_details(self) -> None:
        """Show all that is known of the node."""
        if (node := self.chosen) is not None:
            self.push_screen(Window(f"{node.title} on {node.host}", details(node)))

    def action_log(self) -> None:
        """Show the end of its log."""
        if (node := self.chosen) is not None:
            self._ask(f"log of {node.title}, {node.log}", lambda: self._questions.log(node), at_end=True)

    def action_stacks(self) -> None:
        """Show what its threads are doing."""
        if (node := self.chosen) is not None:
            self._ask(f"threads of {node.title} on {node.host}", lambda: self._questions.stacks(node))

    def action_health(self) -> None:
        """Let every node answer."""
        self._ask("health", lambda: health_lines(self._questions.health()))

    def action_job(self) -> None:
        """Show the nodes of the next job."""
        if self._model is None:
            return
        names = ["", *(job.name for job in self._model.jobs)]
        self._job = names[(names.index(self._job) + 1) % len(names)] if self._job in names else ""
        self.notify(f"nodes of {f'job {self._job!r}' if self._job else 'all jobs'}", timeout=2)
        self._show()

    def action_value(self) -> None:
        """Draw the next of the logged values."""
        if self._model is None or not self._model.values:
            self.notify('no value is logged: worker.log({"loss": …})', timeout=3)
            return
        values = self._model.values
        drawn = self._value or next((job.label for job in self._model.jobs if job.label), "")
        self._value = values[(values.index(drawn) + 1) % len(values)] if drawn in values else values[0]
        self._model = read(self._source.view, self._value)
        self._show()

    def action_keys(self) -> None:
        """Say what the keys do."""
        self.push_screen(Window("keys", KEYS.split("\n")))

    def _ask(self, title: str, question: Callable[[], Sequence[str]], *, at_end: bool = False) -> None:
        window = Window(title, ["asking …"], at_end=at_end)
        self.push_screen(window)
        self.run_worker(self._answer(window, title, question), group="question", exclusive=True)

    async def _answer(self, window: Window, title: str, question: Callable[[], Sequence[str]]) -> None:
        try:
            lines = await asyncio.to_thread(question)
        except (PSError, OSError) as error:
            lines = [str(error)]
        if window.is_current:
            window.show(title, lines)


def health_lines(found: Mapping[str, Any]) -> list[str]:
    """Return a health check as lines: a sentence, then a row for each node."""
    lines = [health_sentence(found), f"the coordinator's loop was {seconds(found.get('lag_s'))} late", ""]
    lines.append(f"{'node':<12}{'host':<16}{'there and back':>15}{'loop late':>11}{'seen':>9}")
    for node in found["nodes"]:
        answered = node["state"] == "answered"
        took = seconds(node["latency_s"]) if answered else node["state"]
        late = seconds(node["lag_s"]) if answered else ""
        seen = "now" if answered else ago(node["seen_s"])
        title = f"{node['role']} {node['rank']}"
        lines.append(f"{title:<12}{node['host'][:15]:<16}{took:>15}{late:>11}{seen:>9}")
    if found.get("left_out"):
        lines.append(f"… and {found['left_out']} more, which were quicker")
    return lines


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
