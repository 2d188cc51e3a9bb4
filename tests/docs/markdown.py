"""The pages, taken apart: fenced blocks, inline code, headings and links. What marks mean is in `docs/README.md`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
)

_FENCE = re.compile(r"^(?P<fence>```+)(?P<info>.*)$")
_HEADING = re.compile(r"^#{1,6}\s+(?P<text>.+?)\s*$")
_LINK = re.compile(
    r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\((?P<target>[^)\s]+)\)|<img[^>]* src=\"(?P<image>[^\"]+)\""
)
_CODE = re.compile(r"(?<!`)`(?P<code>[^`\n]+)`(?!`)")


class Block(NamedTuple):
    """A fenced block: what stands behind its fence, and what is in it."""

    page: Path
    line: int  # of its first line of content, from 1
    language: str
    marks: tuple[str, ...]
    text: str

    @property
    def place(self) -> str:
        return f"{named(self.page)}:{self.line}"

    def mark(self, name: str) -> str | None:
        """What was given as `name=…`."""
        return next((mark.partition("=")[2] for mark in self.marks if mark.startswith(f"{name}=")), None)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    opened: tuple[str, int, str] | None = None  # the fence, the line after it, what stands behind it
    lines: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None:
            if fence:
                opened, lines = (fence["fence"], number + 1, fence["info"]), []
        elif fence and fence["fence"] == opened[0] and not fence["info"].strip():
            language, *marks = opened[2].split() or [""]
            found.append(Block(page, opened[1], language, tuple(marks), "\n".join(lines) + "\n"))
            opened = None
        else:
            lines.append(line)
    assert opened is None, f"{named(page)}: the block at line {opened and opened[1]} is not closed"
    return found


def prose(page: Path) -> str:
    """The page without its fenced blocks, line for line."""
    lines = page.read_text().splitlines()
    for block in blocks(page):
        length = block.text.count("\n")
        for number in range(block.line - 2, block.line + length):
            lines[number] = ""
    return "\n".join(lines)


def inline_code(page: Path) -> Iterator[str]:
    for found in _CODE.finditer(prose(page)):
        yield found["code"]


def links(page: Path) -> Iterator[str]:
    for found in _LINK.finditer(prose(page)):
        yield found["target"] or found["image"]


def anchors(page: Path) -> set[str]:
    """The names that headings of the page can be linked by, as GitHub makes them."""
    found: set[str] = set()
    for line in prose(page).splitlines():
        heading = _HEADING.match(line)
        if heading:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading["text"]).lower()
            found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found
