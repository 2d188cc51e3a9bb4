"""The changelog as data: is it in order, does it fit the version, and what is cut from it.

The format is that of Keep a Changelog: a section for each version, with groups of entries.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import date
from typing import NamedTuple

GROUPS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
UNRELEASED = "Unreleased"
CUT = "run `python -m tools.release cut`"

_SECTION = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>\S+))?$", re.MULTILINE)
_GROUP = re.compile(r"^### (.+)$", re.MULTILINE)
_ENTRY = re.compile(r"^- (.+?)(?=^- |^#|\Z)", re.MULTILINE | re.DOTALL)


class Section(NamedTuple):
    name: str  # a version, or Unreleased
    date: str | None
    text: str

    @property
    def groups(self) -> list[str]:
        return _GROUP.findall(self.text)

    @property
    def entries(self) -> list[str]:
        """The entries, each on one line."""
        return [" ".join(entry.split()) for entry in _ENTRY.findall(self.text)]


def sections(text: str) -> list[Section]:
    found = list(_SECTION.finditer(text))
    ends = [*(each.start() for each in found[1:]), len(text)]
    return [
        Section(each["name"], each["date"], text[each.end() : end])
        for each, end in zip(found, ends, strict=False)
    ]


def order_faults(text: str) -> Iterator[str]:
    """What is out of order at any time, a line for each fault."""
    known = sections(text)
    if not known or known[0].name != UNRELEASED:
        yield "CHANGELOG.md does not begin with a section [Unreleased]; add one above the versions"
    for section in known:
        where = f"CHANGELOG.md, section [{section.name}]"
        expected = [group for group in GROUPS if group in section.groups]
        if section.groups != expected:
            yield f"{where}, has the groups {', '.join(section.groups)}; sort them as {', '.join(GROUPS)}, each once"
        for entry, times in Counter(section.entries).items():
            if times > 1:
                yield f"{where}, has an entry {times} times; keep one: {entry}"
    versions = [_numbers(section.name) for section in known if section.name != UNRELEASED]
    if versions != sorted(set(versions), reverse=True):
        yield "CHANGELOG.md does not list each version once, the newest first"


def version_faults(text: str, version: str, today: date) -> Iterator[str]:
    """What keeps this version from being released, a line for each fault."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        yield f"the version in pyproject.toml is {version!r}, and a release has three numbers, such as 0.2.0"
        return
    known = {section.name: section for section in sections(text)}
    if UNRELEASED in known and known[UNRELEASED].entries:
        yield f"CHANGELOG.md has entries under [Unreleased] that no version has yet; {CUT}"
    section = known.get(version)
    if section is None:
        yield f"CHANGELOG.md has no section [{version}], the version in pyproject.toml; set that, then {CUT}"
        return
    try:
        day = date.fromisoformat(section.date or "")
    except ValueError:
        yield f"the section [{version}] of CHANGELOG.md has no date such as {today}, but {section.date!r}; write it"
        return
    if day > today:
        yield f"the section [{version}] of CHANGELOG.md is dated {day}, which is after today, {today}"
    if _numbers(version) != max(_numbers(name) for name in known if name != UNRELEASED):
        yield f"CHANGELOG.md has a newer version than {version}, the one in pyproject.toml; set that"


def cut(text: str, version: str, today: date) -> str:
    """Turn what is unreleased into this version, with an empty section above it."""
    known = {section.name: section for section in sections(text)}
    if version in known:
        raise SystemExit(
            f"error: CHANGELOG.md has a section [{version}] already; set another in pyproject.toml"
        )
    if UNRELEASED not in known or not known[UNRELEASED].entries:
        raise SystemExit("error: CHANGELOG.md has nothing under [Unreleased] that could become a version")
    heading = f"## [{UNRELEASED}]"
    return text.replace(heading, f"{heading}\n\n## [{version}] - {today}", 1)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))
