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
import pytest

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


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_exist(page: Path) -> None:
    for line in commands_in(page):
        words = [word for word in shlex.split(line)[1:] if word not in ("…", "…'")]
        command: click.Command = cli
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(click.Context(command), words.pop(0))
            assert found is not None, f"{named(page)}: {line}"
            command = found
        for word in words:
            if word.startswith("-") and len(word) > 1:
                assert word.partition("=")[0] in known_options(command), f"{named(page)}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_attributes_exist(page: Path) -> None:
    if page.name == "api.md":
        return  # generated from them
    for code in inline_code(page):
        if place_in(code):
            continue
        for owner, name in _ATTRIBUTE.findall(code):
            if owner == "event":
                assert name in taskharbor.Event.__struct_fields__, f"{named(page)}: {code}"
            else:
                assert hasattr(OWNERS[owner], name), f"{named(page)}: {code}"


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


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_places_in_the_code_exist(page: Path) -> None:
    missing = [code for code in inline_code(page) if (place := place_in(code)) and not exists(place)]
    assert not missing, f"{named(page)}: {missing}"


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


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_tests_exist(page: Path) -> None:
    for code in inline_code(page):
        if not _PATH.match(code):
            for name in _TEST.findall(code):
                assert name in test_names(), f"{named(page)}: {code}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_exist(page: Path) -> None:
    for code in inline_code(page):
        if _PATH.match(code):
            assert (ROOT / code).exists(), f"{named(page)}: {code}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_variables_exist(page: Path) -> None:
    source = "".join(file.read_text() for file in (ROOT / "src").glob("**/*.py"))
    for name in _VARIABLE.findall(page.read_text()):
        assert name in source, f"{named(page)}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_lone_options_belong_to_a_command(page: Path) -> None:
    every = {option for command in _all_commands(cli) for option in known_options(command)}
    every |= {option for action in benchmarks_parser()._actions for option in action.option_strings}
    for code in inline_code(page):
        if _OPTION.match(code):
            assert code in every, f"{named(page)}: {code}"


def _all_commands(group: click.Group) -> Iterator[click.Command]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            yield from _all_commands(command)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_make_targets_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for code in (*inline_code(page), *(block.text for block in blocks(page))):
        for target in re.findall(r"(?:^|\$ )make ([a-z-]+)", code, re.MULTILINE):
            assert target in targets, f"{named(page)}: make {target}"


def test_words_of_the_contract_are_all_in_it() -> None:
    text = (ROOT / "docs" / "semantics.md").read_text()
    for word in (*State, *Reason, *(set(AttemptStatus) - {AttemptStatus.SLEPT})):
        assert f"`{word}`" in text, word
