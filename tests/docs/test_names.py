"""What the pages name in `code` exists: commands, options, attributes, functions, tests, files, variables."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import taskharbor
from benchmarks.cli import parser as benchmarks_parser
from taskharbor import presets
from taskharbor.cli import cli
from taskharbor.client.dead_letters import DeadLetters
from taskharbor.client.jobs import Jobs
from taskharbor.client.queues import Queues
from taskharbor.client.workflows import Workflows
from taskharbor.records import AttemptStatus, Reason, State
from taskharbor.testing import TestingClock
from taskharbor.worker import Worker
from tests.docs.markdown import PAGES, ROOT, blocks, inline_code, named, prose

OWNERS: dict[str, Any] = {
    "harbor": taskharbor.Harbor("memory://"),
    "harbor.jobs": Jobs,
    "harbor.dlq": DeadLetters,
    "harbor.queues": Queues,
    "harbor.workflows": Workflows,
    "job": taskharbor.Job,
    "ctx": taskharbor.Context,
    "worker": Worker,
    "policy": taskharbor.RetryPolicy,
    "decision": taskharbor.Decision,
    "presets": presets,
    "clock": TestingClock,
}
_ATTRIBUTE = re.compile(
    r"\b(harbor\.(?:jobs|dlq|queues|workflows)|harbor|job|ctx|worker|policy|decision|presets|event)\.(?!(?:py|db)\b)(\w+)"
)
SOURCE = ROOT / "src/taskharbor"
# What a place in the code may begin with. Rules are named without their package: `policy.settle_loss`.
_ROOMS = frozenset(path.stem for path in (*SOURCE.iterdir(), *(SOURCE / "rules").glob("*.py"))) - {
    "__init__",
    "py",
}
_PLACE = re.compile(r"^(?P<path>[a-z_]+(?:\.(?!(?:py|md|sql|db)\b)\w+)+)(?:\(.*\))?$")
_TEST = re.compile(r"\btest_\w+")
_PATH = re.compile(r"^(?:src|tests|docs|examples|benchmarks|\.ci)/[\w./-]*$")
_VARIABLE = re.compile(r"\bTASKHARBOR_\w+")
_OPTION = re.compile(r"^--[a-z-]+$")


def commands_in(page: Path) -> Iterator[str]:
    """Every `taskharbor …` line or piece of code of a page."""
    for block in blocks(page):
        if block.language == "console":
            for line in block.text.splitlines():
                if line.startswith("$ "):
                    yield from re.findall(r"taskharbor [^|)]+", line)
    for code in inline_code(page):
        if code.startswith("taskharbor ") and not code.startswith("taskharbor ("):
            yield code


def known_options(command: click.Command) -> set[str]:
    return {spelled for parameter in command.params for spelled in parameter.opts} | {
        "--help",
        "-h",
        "--version",
    }


def is_known(line: str) -> bool:
    """Tell whether the command of a line exists, and has the options that the line gives."""
    words = [word for word in shlex.split(line)[1:] if word not in ("…", "…'")]
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words.pop(0))
        if found is None:
            return False
        command = found
    options = {word.partition("=")[0] for word in words if word.startswith("-") and len(word) > 1}
    return options <= known_options(command)


def codes() -> Iterator[tuple[str, str]]:
    """Every piece of `code` of every page, after the page's name."""
    return ((named(page), code) for page in PAGES for code in inline_code(page))


def test_commands_exist() -> None:
    lines = [(named(page), line) for page in PAGES for line in commands_in(page)]
    assert [f"{page}: {line}" for page, line in lines if not is_known(line)] == []


def test_attributes_exist() -> None:
    assert [
        f"{page}: {code}"
        for page, code in codes()
        if Path(page).name != "api.md"  # generated from them
        if not place_in(code)
        for owner, name in _ATTRIBUTE.findall(code)
        if not (
            name in taskharbor.Event.__struct_fields__ if owner == "event" else hasattr(OWNERS[owner], name)
        )
    ] == []


def place_in(code: str) -> str | None:
    """The path of a place in the code, such as `worker.run.WorkerRun`; None for what is not meant as one."""
    found = _PLACE.match(code)
    if not found:
        return None
    room, name, *more = found["path"].split(".")
    is_attribute = not more and room in OWNERS and hasattr(OWNERS[room], name)
    return found["path"] if room in _ROOMS and not is_attribute else None


def exists(place: str) -> bool:
    """Whether a module of `src/taskharbor` has this name; a module of `rules` is named without its package."""
    room, *names = place.split(".")
    thing: Any = importlib.import_module(
        f"taskharbor{'.rules' if (SOURCE / 'rules' / f'{room}.py').exists() else ''}.{room}"
    )
    for name in names:
        if isinstance(thing, ModuleType) and not hasattr(thing, name):
            try:
                thing = importlib.import_module(f"{thing.__name__}.{name}")
                continue
            except ModuleNotFoundError:
                return False
        if not hasattr(thing, name):
            return False
        thing = getattr(thing, name)
    return True


def test_places_in_the_code_exist() -> None:
    places = [(page, place) for page, code in codes() if (place := place_in(code))]
    assert [f"{page}: {place}" for page, place in places if not exists(place)] == []


def rules_of(page: Path) -> list[str]:
    """The items of the page's lists, each with the lines that continue it."""
    return re.findall(r"^- .*(?:\n  .*)*", prose(page), re.MULTILINE)


def is_sql_function(place: str) -> bool:
    """Tell whether a place such as `SQL claim_on_trail` is a function of the PostgreSQL schema."""
    name = place.removeprefix("SQL ")
    files = (SOURCE / "drivers/postgres/migrations").rglob("*.sql")
    return name != place and any(f"CREATE FUNCTION {{schema}}.{name}(" in file.read_text() for file in files)


def test_every_rule_of_the_contract_has_a_name_and_a_place() -> None:
    rules = rules_of(ROOT / "docs/semantics.md")
    assert len(rules) > 80
    for rule in rules:
        assert re.match(r"- \*\*[^*]+\.\*\* ", rule), f"begin it with its name in bold: {rule}"
        places = re.search(r" Code:\s+((?:`[^`]+`(?:,\s+)?)+)\.$", rule)
        assert places, f"end it with its place, 'Code: `module.function`.': {rule}"
        for place in re.findall(r"`([^`]+)`", places[1]):
            assert place_in(place) or is_sql_function(place), f"no place in the code: {place}"


@cache
def test_names() -> frozenset[str]:
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("src/taskharbor/conformance/**/*.py")]
    return frozenset(name for file in files for name in re.findall(r"def (test_\w+)", file.read_text()))


test_names.__test__ = False  # type: ignore[attr-defined]


def test_tests_exist() -> None:
    assert [
        f"{page}: {code}"
        for page, code in codes()
        if not _PATH.match(code)
        if not test_names().issuperset(_TEST.findall(code))
    ] == []


def test_files_exist() -> None:
    paths = [(page, code) for page, code in codes() if _PATH.match(code)]
    assert [f"{page}: {path}" for page, path in paths if not (ROOT / path).exists()] == []


def test_variables_exist() -> None:
    source = "".join(file.read_text() for file in (ROOT / "src").glob("**/*.py"))
    variables = {(named(page), name) for page in PAGES for name in _VARIABLE.findall(page.read_text())}
    assert [f"{page}: {name}" for page, name in sorted(variables) if name not in source] == []


def test_lone_options_belong_to_a_command() -> None:
    every = {option for command in _all_commands(cli) for option in known_options(command)}
    every |= {option for action in benchmarks_parser()._actions for option in action.option_strings}
    options = [(page, code) for page, code in codes() if _OPTION.match(code)]
    assert [f"{page}: {option}" for page, option in options if option not in every] == []


def _all_commands(group: click.Group) -> Iterator[click.Command]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            yield from _all_commands(command)


def test_make_targets_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    codes_and_blocks = (
        (named(page), code)
        for page in PAGES
        for code in (*inline_code(page), *(block.text for block in blocks(page)))
    )
    assert [
        f"{page}: make {target}"
        for page, code in codes_and_blocks
        for target in re.findall(r"(?:^|\$ )make ([a-z-]+)", code, re.MULTILINE)
        if target not in targets
    ] == []


def test_words_of_the_contract_are_all_in_it() -> None:
    text = (ROOT / "docs" / "semantics.md").read_text()
    for word in (*State, *Reason, *(set(AttemptStatus) - {AttemptStatus.SLEPT})):
        assert f"`{word}`" in text, word
