"""The references are what the code says today, and leave nothing out."""

from __future__ import annotations

import inspect

import pytest

import taskharbor
from docs import reference
from taskharbor.client.options import OPTION_NAMES
from tests.docs.markdown import ROOT, blocks


def test_generated_pages_are_up_to_date() -> None:
    stale = [
        str(page.relative_to(ROOT)) for page, text in reference.current().items() if page.read_text() != text
    ]
    assert not stale, "run `python docs/reference.py`"


def test_every_public_name_is_documented() -> None:
    documented = {thing.__name__ for things in reference.SECTIONS.values() for thing in things}
    documented |= set(reference.NAME_TYPES.values())
    assert set(taskharbor.__all__) - documented == {"presets"}  # which has its own page


@pytest.mark.parametrize(
    "cls",
    [thing for things in reference.SECTIONS.values() for thing in things if inspect.isclass(thing)],
    ids=lambda cls: cls.__name__,
)
def test_every_public_method_says_what_it_does(cls: type) -> None:
    # What these do is what every clock, every store or every decision does: their names say it.
    plain = {
        "Decision": {"retry", "dead"},
        "Driver": {"get", "leases"},
        "ManualClock": {"now", "monotonic", "call_later", "sleep"},
    }
    for name, member in reference.members(cls).items():
        if not isinstance(member, property) and name not in plain.get(cls.__name__, ()):
            assert inspect.getdoc(getattr(cls, name)), f"{cls.__name__}.{name}"


def test_every_option_is_documented() -> None:
    assert set(reference.OPTIONS) == OPTION_NAMES


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    for path, command in reference.commands().items():
        heading = f"# `taskharbor {' '.join(path)}`\n"
        assert heading in text
        section = text.partition(heading)[2].partition("\n#")[0]
        common = {option.name for option in reference.COMMON_OPTIONS}
        for parameter in command.params:
            if parameter.name not in common:
                assert (
                    parameter.opts[0] in section
                    or (parameter.metavar or parameter.opts[0].upper()) in section
                )


def test_the_presets_table_is_the_code() -> None:
    """Read from the page, not from what generates it."""
    text = (ROOT / "docs" / "retries.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.partition("<!-- generated: presets -->")[2].partition("<!-- end -->")[0].splitlines()
        if line.startswith("| `")
    ]
    policies = reference.preset_policies()
    assert [row[0].strip("`") for row in rows] == list(policies)
    for row in rows:
        policy = policies[row[0].strip("`")]
        assert int(row[1]) == policy.max_attempts
        if policy.max_attempts > 1:
            assert _seconds(row[2]) == policy.initial
            assert _seconds(row[3]) == policy.maximum
            assert float(row[4]) == policy.multiplier
            assert _jitter(row[5]) == policy.jitter
            for text_of_error in (*policy.retry_on, *policy.never_retry_on):
                assert str(text_of_error) in row[6]


def _seconds(cell: str) -> float:
    number, unit = cell.split()
    return float(number) * {"ms": 0.001, "s": 1.0, "min": 60.0}[unit]


def _jitter(cell: str) -> float | str | None:
    if cell in ("none", "full"):
        return None if cell == "none" else "full"
    return float(cell.removeprefix("±").removesuffix(" %")) / 100


def test_the_reference_of_the_command_line_has_blocks_to_check() -> None:
    assert len(blocks(ROOT / "docs" / "cli.md")) > len(reference.commands()) / 2
