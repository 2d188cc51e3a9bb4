"""Draw a workflow as a tree, with a text for each job. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from taskharbor.workflow.graph import Shape

EXPANDED_MAX = 20  # members of a group that are drawn one by one; of a larger one only those that failed


class Leaf(Struct, frozen=True):
    index: int


class Branch(Struct, frozen=True):
    label: str
    children: tuple[Twig, ...]


class Crowd(Struct, frozen=True):
    """A group that is too large to be drawn."""

    indexes: range


Twig = Branch | Leaf | Crowd  # what a tree is made of


def branches(shape: Shape) -> Twig:
    """What there is to draw."""
    if isinstance(shape, int):
        return Leaf(shape)
    match shape:
        case {"chain": [*parts]}:
            return _branch("chain", parts)
        case {"group": {"first": first, "count": count}}:
            members = range(first, first + count)
            return Crowd(members) if count > EXPANDED_MAX else _branch("group", members)
        case {"group": [*parts]}:
            return _branch("group", parts)
        case {"chord": [members, body]}:
            return _branch("chord", [members, body])
        case {"graph": [*nodes]}:
            return Branch("graph", tuple(_node(node) for node in nodes))
    return Branch(f"a shape that this version does not know: {shape!r:.60}", ())


def _branch(label: str, parts: Iterable[Shape]) -> Branch:
    return Branch(label, tuple(branches(part) for part in parts))


def _node(node: dict[str, Any]) -> Branch:
    after = f" (after {', '.join(node['after'])})" if node["after"] else ""
    return Branch(f"{node['name']}{after}", (branches(node["part"]),))


def drawn(twig: Twig, state_of: Callable[[int], str], text_of: Callable[[int], str]) -> Iterator[str]:
    """Draw the tree line by line; `text_of` returns the text of a job."""
    yield _label(twig, state_of, text_of)
    children = _children(twig, state_of)
    for position, child in enumerate(children):
        last = position == len(children) - 1
        lines = drawn(child, state_of, text_of)
        yield f"{'└─' if last else '├─'} {next(lines)}"
        for line in lines:
            yield f"{'   ' if last else '│  '}{line}"


def leaves(twig: Twig, state_of: Callable[[int], str]) -> Iterator[int]:
    """Return the jobs that are drawn one by one."""
    if isinstance(twig, Leaf):
        yield twig.index
    for child in _children(twig, state_of):
        yield from leaves(child, state_of)


def _label(twig: Twig, state_of: Callable[[int], str], text_of: Callable[[int], str]) -> str:
    if isinstance(twig, Leaf):
        return text_of(twig.index)
    if isinstance(twig, Branch):
        return twig.label
    states = Counter(map(state_of, twig.indexes))
    counted = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
    return f"group of {len(twig.indexes):,}: {counted}"


def _children(twig: Twig, state_of: Callable[[int], str]) -> Sequence[Twig]:
    if isinstance(twig, Branch):
        return twig.children
    if isinstance(twig, Crowd):
        failed = [index for index in twig.indexes if state_of(index) in ("dead", "cancelled")]
        return [Leaf(index) for index in failed[:EXPANDED_MAX]]
    return ()
