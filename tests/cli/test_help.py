"""Every command is documented, with an example that names real commands and options."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from taskharbor.cli import cli
from taskharbor.cli.entry import COMMANDS


def commands(
    group: click.Group = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


ALL = dict(commands())


def named(path: tuple[str, ...]) -> str:
    return " ".join(path)


def test_all_the_commands_that_are_due_are_there():
    assert set(map(named, ALL)) == {
        *COMMANDS,
        *("job retry", "job run-now", "job update", "job delete"),
        *(
            "dlq list",
            "dlq add",
            "dlq groups",
            "dlq requeue",
            "dlq requeue-all",
            "dlq discard",
            "dlq discard-all",
        ),
        *("token create", "token list", "token revoke"),
        *("queue list", "queue pause", "queue resume"),
        *("task list", "task hold", "task release"),
        *(f"schedule {verb}" for verb in ("list", "add", "pause", "resume", "run", "delete")),
        *("workflow list", "workflow show", "workflow cancel", "workflow retry"),
        "stream replay",
    }


@pytest.mark.parametrize("path", ALL, ids=named)
def test_help_says_what_it_does_and_gives_an_example(path):
    answer = CliRunner().invoke(cli, [*path, "--help"], prog_name="taskharbor")
    assert answer.exit_code == 0
    assert "Example" in answer.stdout
    assert "\\b" not in answer.stdout  # click's mark of a block, written with one backslash too many
    assert f"  taskharbor {' '.join(path)}" in answer.stdout
    assert (
        ALL[path].get_short_help_str().endswith((".", "?", "…", "..."))
        or len(ALL[path].get_short_help_str()) > 10
    )


@pytest.mark.parametrize("path", ALL, ids=named)
def test_examples_parse(path):
    lines = (ALL[path].help or "").splitlines()
    examples = [line.strip() for line in lines if line.strip().startswith("taskharbor ")]
    assert examples
    for example in examples:
        words = shlex.split(re.split(r" [|>] ", example)[0])[1:]
        command: click.Command = cli
        while isinstance(command, click.Group) and not words[0].startswith("-"):
            found = command.get_command(click.Context(command), words.pop(0))
            assert found is not None, example
            command = found
        command.make_context("taskharbor", words)  # raises for anything that is not there


@pytest.mark.parametrize(
    "path", [path for path, it in ALL.items() if not isinstance(it, click.Group)], ids=named
)
def test_every_command_takes_url_and_json(path):
    options = {option for parameter in ALL[path].params for option in parameter.opts}
    url = {"--from", "--to"} if path == ("copy",) else {"--url"}
    assert url | {"--json"} <= options


def test_nothing_asked_is_help_and_half_a_command_is_an_error(run):
    assert run(store=None).out.startswith("Usage: taskharbor [OPTIONS]")
    for group in ("dlq", "job", "queue"):
        assert run(group, store=None, code=2).error == f"Missing command (see `taskharbor {group} --help`)"


def test_the_package_runs_as_the_command():
    asked = [sys.executable, "-P", "-m", "taskharbor", "--version"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout.startswith(
        "taskharbor, version "
    )


def test_version():
    answer = CliRunner().invoke(cli, ["--version"], prog_name="taskharbor")
    assert answer.stdout.startswith("taskharbor, version ")


def test_help_needs_neither_rich_nor_the_worker():
    code = (
        "import sys; from taskharbor.cli import cli\n"
        "try: cli(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('rich', 'taskharbor.worker', 'sqlite3') if name in sys.modules], file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stderr.strip() == "[]"
