"""Code and pages are in plain English: these words cost a second reading, and do not come back."""

from __future__ import annotations

import re

import pytest

from tests.docs.markdown import ROOT

# Each word or phrase, and what to write instead. Names count as well: `releases_nobody` is "releases nobody".
INSTEAD = {
    "whoever": "name the thing or the role: the caller, the worker, a waiter",
    "whomever": "name the thing or the role: the caller, the worker, a waiter",
    "somebody": "name who it is: a caller, an operator, another process",
    "nobody": "say what does not happen: no worker claims it, no caller waits",
    "everybody": "name them: every worker, all callers",
    "himself": "itself, or name the process or the caller",
    "herself": "itself, or name the process or the caller",
    "(?:is|are|was|were|be|been|being) told": "say who reports what: the store answers, the event names, the log shows",
    "news": "a change, a notification, an answer",
    "so many": "that many, or the number: at most 100 jobs",
    "so long": "that long, or the time: for up to 5 s; 'as long as' for a condition",
    "for ever": "without end, always, never ends",
    "befall(?:s|en)?|befell": "happen to",
    "all the same": "still, anyway, nevertheless",
}
REFUSED = {
    re.compile(
        r"(?<![^\W_])" + word.replace(" ", r"(?:_|[\s#*>|\"'-]+)") + r"(?![^\W_])", re.IGNORECASE
    ): instead
    for word, instead in ((rf"(?:{word})", instead) for word, instead in INSTEAD.items())
}
OWN_NAMES = {"tools/postgres_server.py": {"nobody"}}  # the Unix account
FILES = sorted(
    file
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "docs/*.py",
        "docs/images/*.svg",
        "src/**/*.py",
        "src/**/*.sql",
        "examples/*.py",
        "benchmarks/**/*.py",
        "benchmarks/*.md",
        "tools/*.py",
    )
    for file in ROOT.glob(pattern)
)


def refused_words(text: str) -> list[str]:
    """Name each refused word with its line and what to write instead."""
    found = [
        (text.count("\n", 0, match.start()) + 1, " ".join(match[0].split()), instead)
        for word, instead in REFUSED.items()
        for match in word.finditer(text)
    ]
    return [f"{line}: {word!r}; instead: {instead}" for line, word, instead in sorted(found)]


def test_words_that_cost_a_second_reading_are_not_used() -> None:
    found = [
        f"{name}:{line}"
        for file in FILES
        for name in [str(file.relative_to(ROOT))]
        for line in refused_words(file.read_text())
        if not any(repr(own) in line for own in OWN_NAMES.get(name, ()))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a job that nobody claims", "1: 'nobody'"),
        ("one\ntwo, for\never", "2: 'for ever'"),
        ("# the caller is\n# told", "1: 'is # told'"),
        ("def releases_nobody(): ...", "1: 'nobody'"),
        ("def test_listens_for_ever(): ...", "1: 'for_ever'"),
        ("Whoever waits", "1: 'Whoever'"),
    ],
)
def test_a_refused_word_is_found_in_prose_across_lines_and_in_names(text: str, found: str) -> None:
    assert [line.partition(";")[0] for line in refused_words(text)] == [found]


def test_words_that_only_contain_a_refused_one_are_left_alone() -> None:
    assert not refused_words("a newsletter; however long; for everyone; so manyfold; also long")
