"""JSON as a person reads it: a tree that folds, bounded, every number as it is stored; and the lines that differ."""

from __future__ import annotations

import difflib
import json
from typing import Any

from msgspec import Struct

from taskharbor.codec import counted
from taskharbor.server.drawing.svg import Svg, element

NODES_MAX = 2_000
TEXT_MAX = 2_000  # characters of one text
DEPTH_MAX = 50
OPEN_DEPTH = 2  # what lies deeper begins folded
OPEN_ITEMS = 50  # and so does what has more items
DIFF_LINES_MAX = 2_000


class _Budget:
    def __init__(self) -> None:
        self.left = NODES_MAX


def json_tree(value: Any) -> Svg:
    """Write a value as nested lists that open and close."""
    return element("div", _node(value, 0, _Budget()), class_="json")


def _node(value: Any, depth: int, budget: _Budget) -> Svg:
    budget.left -= 1
    if isinstance(value, dict | list):
        return _folding(value, depth, budget)
    if isinstance(value, str):
        return _text(value)
    kind = "none" if value is None else "boolean" if isinstance(value, bool) else "number"
    return element("span", json.dumps(value), class_=kind)


def _text(value: str) -> Svg:
    shown = json.dumps(value[:TEXT_MAX], ensure_ascii=False)
    if len(value) <= TEXT_MAX:
        return element("span", shown, class_="text")
    more = element("i", f" … {len(value) - TEXT_MAX:,} more characters")
    return element("span", shown, more, class_="text")


def _folding(value: dict[str, Any] | list[Any], depth: int, budget: _Budget) -> Svg:
    is_object = isinstance(value, dict)
    if not value:
        return element("span", "{}" if is_object else "[]", class_="none")
    size = counted(len(value), "field" if is_object else "item")
    if depth >= DEPTH_MAX:
        return element("i", f"{size}, too deep to show")
    items = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        if budget.left <= 0:
            items.append(element("li", element("i", "… more than is shown here")))
            break
        name = element(
            "span", json.dumps(str(key), ensure_ascii=False) if is_object else str(key), class_="key"
        )
        items.append(element("li", name, ": ", _node(inner, depth + 1, budget)))
    is_open = depth < OPEN_DEPTH and len(value) <= OPEN_ITEMS
    return element(
        "details",
        element("summary", size),
        element("ul", *items),
        open="" if is_open else None,
    )


class Line(Struct, frozen=True):
    """A line of a comparison: `kind` is same, old or new."""

    kind: str
    text: str


def written(value: Any) -> str:
    """Write JSON for a person to edit."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def compared(old: Any, new: Any) -> list[Line]:
    """Compare two values line by line, as they are written for a person; nothing if they are the same."""
    before, after = written(old).splitlines(), written(new).splitlines()
    if before == after:
        return []
    if len(before) + len(after) > DIFF_LINES_MAX:
        return [Line("same", f"{len(before):,} lines became {len(after):,}: too many to compare here")]
    lines: list[Line] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            lines += [Line("same", text) for text in before[a:b]]
        else:
            lines += [Line("old", text) for text in before[a:b]] + [Line("new", text) for text in after[c:d]]
    return lines
