"""What a person sees: tables that fit the terminal, colours unless NO_COLOR says otherwise."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import termios
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from taskharbor import group
from taskharbor.cli.demo import output
from taskharbor.cli.screen import age, aligned, escaped_json, rich_table, span
from taskharbor.records import State
from tests.cli.conftest import COMMAND

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def on_terminal(*words: str, columns: int = 80, **environment: str) -> str:
    """Run a command on a terminal of its own."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    settings = {**kept, "TERM": "xterm-256color", **environment}
    process = subprocess.Popen([*COMMAND, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=settings)
    os.close(theirs)
    out = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not piece:
            break
        out += piece
    os.close(ours)
    assert process.wait(60) == 0, out
    return out.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_and_a_table_that_fits(harbor, url):
    job = harbor.enqueue("a.rather.long.name:of-a-task", queue="mail")
    out = on_terminal("list", "--url", url)
    assert "\x1b[36mready" in out
    assert job.id in out
    assert "PRIORITY" not in out  # no room for it
    wide = on_terminal("list", "--url", url, columns=160)
    assert "PRIORITY" in wide
    assert " ago" in wide


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour_means_none(harbor, url, setting):
    harbor.enqueue("echo")
    for words in (["list"], ["stats"], ["dlq", "list"], ["doctor"]):
        assert "\x1b" not in on_terminal(*words, "--url", url, **setting)


def test_json_is_json_on_a_terminal_too(harbor, url):
    harbor.enqueue("echo")
    assert "\x1b" not in on_terminal("list", "--json", "--url", url)


VISIBLE = "Grüße 漢字 🚢"
HOSTILE = (
    "\x1b]0;title\x07\x1b[2J\r\x08\x7f"  # C0 and DEL: JSON itself escapes all but the last
    "\x85\x9b31m\x9d0;title\x9c"  # C1: a terminal takes 9b for ESC [ and 9d for ESC ]
    "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"  # direction of writing
    "\u2028\u2029\u200b\ufeff\U000e0041"  # lines, and what has no width
    f"{VISIBLE}"
)


@pytest.mark.parametrize("setting", [{}, {"TERM": "dumb"}])
def test_json_on_a_terminal_escapes_what_a_terminal_obeys(harbor, url, setting):
    job = harbor.enqueue("t", {"value": HOSTILE, HOSTILE: 1}, tags=["a"])
    out = on_terminal("inspect", job.id, "--json", "--url", url, PYTHONIOENCODING="utf-8", **setting)
    assert [c for c in out if not c.isprintable() and c != "\n"] == []
    assert VISIBLE in out
    assert json.loads(out)["payload"] == {"value": HOSTILE, HOSTILE: 1}


def test_json_in_a_pipe_keeps_every_character(harbor, run):
    job = harbor.enqueue("t", {"value": HOSTILE})
    answer = run("inspect", job.id, "--json")
    assert "\u202e" in answer.out
    assert answer.document["payload"] == {"value": HOSTILE}


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["dlq", "list"],
        ["inspect"],
        ["stats"],
        ["top", "--once", "--interval", "200ms"],
        ["workflow", "list"],
    ],
)
def test_no_stored_text_reaches_a_terminal_as_an_escape_code(harbor, url, drain, words):
    @harbor.task(name="t", max_attempts=1)
    def fail(value: str) -> None:
        raise ValueError(HOSTILE)

    job = harbor.enqueue("t", {"value": HOSTILE}, correlation_id="c", queue="q")
    group(fail.s(HOSTILE)).enqueue()
    drain()
    assert harbor.jobs.get(job.id).state == "dead"
    asked = [*words, job.id] if words == ["inspect"] else words
    for no_color in ("", "1"):
        out = on_terminal(*asked, "--url", url, PYTHONIOENCODING="utf-8", NO_COLOR=no_color)
        shown = re.sub(r"\x1b\[[0-9;]*m", "", out)  # our own colours
        assert [c for c in shown if not c.isprintable() and c != "\n"] == []


@given(
    st.recursive(st.text() | st.none() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_an_escaped_document_is_the_same_document(value):
    for plain in (True, False):
        text = escaped_json(json.dumps(value, indent=2, ensure_ascii=plain))
        assert all(line.isprintable() for line in text.split("\n"))
        assert json.loads(text) == value


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_an_id_is_never_cut_short(width):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    columns = ("ID", "STATE", "TASK", "QUEUE", "ERROR")
    job_id = "0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10"
    row = (job_id, State.DEAD, "email:send", "mail", "[bold]no markup[/] " * 10)
    console.print(rich_table(columns, [row], ("QUEUE", "TASK"), width))
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert job_id in out
    assert "QUEUE" not in out or width >= 80


def test_columns_are_aligned_and_complete():
    assert aligned(("A", "LONG"), [("abc", None), ("", True), (1.5, NOW)]) == (
        "A    LONG\nabc  -\n-    yes\n1.5  2026-01-01T00:00:00Z"
    )


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0.0s"), (9.94, "9.9s"), (12, "12s"), (119, "119s"), (120, "2m"), (7_200, "2h"), (172_800, "2d")],
)
def test_spans_are_short(seconds, told):
    assert span(seconds) == told
    assert age(NOW - timedelta(seconds=seconds), NOW) == f"{told} ago"


def test_ages_may_lie_ahead():
    assert age(NOW + timedelta(seconds=30), NOW) == "in 30s"


def test_the_live_output_of_the_demo(harbor, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    monkeypatch.setattr(output, "terminal_console", lambda: console)
    record = harbor.enqueue("echo", {"message": "beach.jpg"}).record
    with output.output_for(as_json=False, is_terminal=True) as live:
        live.scene("1. a scene")
        live.say("something happened", "green")
        live.show([record])
        live.summary(("TASK", "STATE"), [("echo", "succeeded")])
        live.close(["the end"])
    out = console.file.getvalue()  # type: ignore[attr-defined]
    for told in ("1. a scene", "something happened", "echo beach.jpg", "succeeded", "the end"):
        assert told in out
