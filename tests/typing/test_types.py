"""The typed interface: what mypy says of calls that are right, and of calls that are wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
CASES = Path(__file__).with_name("cases.py")
IGNORED = re.compile(r"  # type: ignore\[(.+)\]")


def wrong_calls() -> dict[int, tuple[str, str]]:
    """By line: the call that must not pass, and the code of mypy's error."""
    lines = enumerate(CASES.read_text().splitlines(), 1)
    return {n: (line.partition("  #")[0].strip(), m[1]) for n, line in lines if (m := IGNORED.search(line))}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """What mypy says, by line, of the same calls when nothing is ignored."""
    folder = tmp_path_factory.mktemp("typing")
    bare = folder / "bare.py"
    bare.write_text(IGNORED.sub("", CASES.read_text()))
    cache = f"--cache-dir={folder / 'cache'}"
    config = f"--config-file={ROOT / 'pyproject.toml'}"
    out, err, _ = api.run([str(bare), config, cache, "--no-pretty", "--no-error-summary"])
    assert not err, err
    lines: dict[int, list[str]] = {}
    for message in out.splitlines():
        if match := re.match(r".*bare\.py:(\d+): error: (.*)", message):
            lines.setdefault(int(match[1]), []).append(match[2])
        else:
            assert ": note: " in message, message
    return lines


@pytest.mark.parametrize(("line", "call"), [(line, call) for line, (call, _) in wrong_calls().items()])
def test_a_wrong_call_is_an_error(said: dict[int, list[str]], line: int, call: str):
    assert line in said, f"mypy let this pass: {call}"
    codes = {code for text in said[line] for code in re.findall(r"\[([a-z-]+)\]$", text)}
    assert codes == set(wrong_calls()[line][1].split(", ")), said[line]


def test_right_calls_pass_and_give_what_is_asserted(said: dict[int, list[str]]):
    assert {line: texts for line, texts in said.items() if line not in wrong_calls()} == {}
    assert CASES.read_text().count("assert_type(") > 25
