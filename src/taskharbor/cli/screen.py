"""Answers: tables on a terminal, plain columns in a pipe, one JSON document with --json."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click
import msgspec

from taskharbor.telemetry.logs import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

Cell = str | int | float | bool | datetime | timedelta | None

EMPTY = "-"
TEXT_COLUMNS = frozenset({"ERROR", "DETAIL", "RESULT", "RUNNING JOBS", "LONGEST", "NOTE"})  # they wrap
TEXT_WIDTH = 30  # how much room a text should have, before other columns are left out for it
STYLES = {
    "waiting": "magenta",
    "scheduled": "yellow",
    "ready": "cyan",
    "running": "blue",
    "succeeded": "green",
    "dead": "red",
    "cancelled": "dim",
    "failed": "red",
    "timed_out": "red",
    "lost": "yellow",
    "stuck": "red",
    "ok": "green",
    "warning": "yellow",
}


class Screen:
    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    @cached_property
    def console(self) -> Console:
        return terminal_console()

    # -- what a command says --

    def document(self, value: object) -> None:
        """The answer of `--json`."""
        # Letters beyond ASCII only where the other end is known to read them.
        plain = (getattr(sys.stdout, "encoding", None) or "").lower() not in ("utf-8", "utf8")
        text = json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=plain)
        click.echo(escaped_json(text) if sys.stdout.isatty() else text)

    def line(self, text: str) -> None:
        click.echo(one_line(text))

    def block(self, text: str, indent: str = "") -> None:
        """A text of several lines, such as a traceback."""
        click.echo("\n".join(indent + one_line(line) for line in text.rstrip("\n").split("\n")))

    def note(self, text: str) -> None:
        """Something to know beside the answer: on standard error, so that a pipe stays clean."""
        click.echo(one_line(text), err=True)

    def heading(self, text: str) -> None:
        if self.is_terminal:
            self.console.print(_text(f"\n{text}", "bold"))
        else:
            click.echo(f"\n{text}")

    def pairs(self, pairs: Mapping[str, Cell]) -> None:
        """Names and values, one a line; what is not set is left out."""
        shown = {name: _cell(value, relative=False) for name, value in pairs.items() if value is not None}
        width = max((len(name) for name in shown), default=0)
        for name, value in shown.items():
            if self.is_terminal:
                line = _text(f"{name:<{width}}  ", "bold").append_text(_text(value, STYLES.get(value, "")))
                self.console.print(line, soft_wrap=True)
            else:
                click.echo(f"{name:<{width}}  {value}")

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[Cell]],
        *,
        empty: str = "nothing",
        optional: Sequence[str] = (),
    ) -> None:
        """Rows under headings, a pipe's with instants and all the columns.

        A terminal shows times as ages, and leaves out `optional` columns, the first ones first, where it
        is too narrow for all.
        """
        if not self.is_terminal:
            click.echo(aligned(columns, rows))
        elif not rows:
            self.console.print(_text(empty, "dim"))
        else:
            self.console.print(rich_table(columns, rows, optional, self.console.width))


# -- plain ---------------------------------------------------------------------------------------


def aligned(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Columns of text, two spaces apart; a value that is missing is `-`, so that every row has them all."""
    texts = [list(columns), *([_cell(cell, relative=False) for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in texts) for index in range(len(columns))]
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in texts
    )


def _cell(value: Cell, *, relative: bool) -> str:
    match value:
        case None | "":
            return EMPTY
        case bool():
            return "yes" if value else "no"
        case datetime():
            return age(value) if relative else instant(value)
        case timedelta():
            return span(value.total_seconds())
        case float():
            return f"{value:g}"
        case _:
            return one_line(str(value))


def instant(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(value: datetime, now: datetime | None = None) -> str:
    """`12s ago`, `in 5m`"""
    seconds = ((now or datetime.now(UTC)) - value).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def span(seconds: float) -> str:
    """A duration in the one unit that fits: `0.4s`, `12s`, `5m`, `3h`, `8d`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    for unit, size, limit in (("s", 1, 120), ("m", 60, 7_200), ("h", 3_600, 172_800)):
        if seconds < limit:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds / 86_400:.0f}d"


def escaped_json(text: str) -> str:
    """Escape what is not printable in a JSON document, for a terminal.

    A stored text may contain what a terminal obeys: C1 controls, or characters that change the direction of writing and
    so disguise a text. A line end is never part of a string here; JSON escapes it.
    """
    return "\n".join(
        line if line.isprintable() else "".join(map(_escaped_character, line)) for line in text.split("\n")
    )


def _escaped_character(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


# -- a terminal ----------------------------------------------------------------------------------


def terminal_console() -> Console:
    from rich.console import Console

    # An answer is data: no markup, no emoji, no guessing what to highlight. NO_COLOR means no styles at all.
    options: dict[str, Any] = {"color_system": None} if os.environ.get("NO_COLOR") else {}
    return Console(highlight=False, emoji=False, **options)


def rich_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    optional: Sequence[str] = (),
    width_max: int = 80,
) -> Table:
    from rich.table import Table

    cells = [[(_cell(cell, relative=True), cell) for cell in row] for row in rows]
    widths = {
        title: max(len(title), *(len(row[index][0]) for row in cells)) for index, title in enumerate(columns)
    }
    shown = _fitting(widths, optional, width_max)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in shown:
        is_text = title in TEXT_COLUMNS
        # A shortened value is useless, above all an id, so only texts wrap.
        table.add_column(
            title, no_wrap=not is_text, overflow="fold", min_width=None if is_text else widths[title]
        )
    for row in cells:
        table.add_row(
            *(
                _text(text, STYLES.get(text, "") if isinstance(cell, StrEnum) else "")
                for title, (text, cell) in zip(columns, row, strict=True)
                if title in shown
            )
        )
    return table


def _fitting(widths: Mapping[str, int], optional: Sequence[str], width_max: int) -> list[str]:
    shown = list(widths)
    for title in optional:
        needed = sum(
            min(widths[name], TEXT_WIDTH) if name in TEXT_COLUMNS else widths[name] for name in shown
        )
        if needed + 2 * (len(shown) - 1) <= width_max:
            break
        shown.remove(title)
    return shown


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style=style)
