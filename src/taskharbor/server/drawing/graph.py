"""The graph of a workflow: columns of jobs from left to right, each behind everything that it depends on.

Parallel jobs of one task between the same neighbours fold into one node, and so do long chains without a branch. A
group of a thousand jobs is one node with its counts; a reader opens the list of jobs from there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from taskharbor.codec import counted
from taskharbor.server.drawing.svg import Svg, element, picture, shortened

FOLD_FROM = 5  # siblings
CHAIN_FROM = 12  # jobs in a row without a branch
NODES_MAX = 300  # after folding: what is left is counted in words
LABEL_MAX = 24

# The order in which the states of a folded node are shown, and which of them names the node.
STATES = ("dead", "cancelled", "running", "ready", "scheduled", "waiting", "succeeded")

_WIDTH, _HEIGHT = 190, 46
_GAP_X, _GAP_Y = 64, 16
_MARGIN = 8


class Node(Struct, frozen=True):
    """A member of the workflow."""

    id: str
    label: str
    state: str
    depends_on: Sequence[str] = ()
    href: str | None = None


class Graph(Struct, frozen=True):
    """The picture, and what it leaves out."""

    svg: Svg
    nodes: int  # that are drawn, folded ones as one
    left_out: int  # members that are not drawn at all


class _Box:
    """A node of the picture: one member, or several that are folded into one."""

    def __init__(self, members: Sequence[Node]) -> None:
        self.members = members
        self.before: set[_Box] = set()
        self.after: set[_Box] = set()
        self.column = 0
        self.row = 0.0

    @property
    def first(self) -> Node:
        return self.members[0]

    @property
    def counts(self) -> Counter[str]:
        return Counter(member.state for member in self.members)

    @property
    def state(self) -> str:
        """The state that needs attention first."""
        counts = self.counts
        return next((state for state in STATES if counts[state]), self.first.state)


def graph(nodes: Sequence[Node], label: str) -> Graph:
    """Draw members and what they depend on. A dependency that is no member is left out."""
    boxes = _linked(_folded_chains(_linked(_folded_siblings(nodes), nodes)), nodes)
    _set_columns(boxes)
    boxes.sort(key=lambda box: box.column)
    drawn_boxes, left = boxes[:NODES_MAX], boxes[NODES_MAX:]
    columns = _ordered(drawn_boxes)
    height = max((len(column) for column in columns), default=0) * (_HEIGHT + _GAP_Y) + 2 * _MARGIN
    width = len(columns) * (_WIDTH + _GAP_X) - _GAP_X + 2 * _MARGIN if columns else 1
    drawn = {id(box) for box in drawn_boxes}
    lines = [_line(before, box) for box in drawn_boxes for before in box.before if id(before) in drawn]
    svg = picture(
        label,
        *lines,
        *(_drawn(box) for box in drawn_boxes),
        class_="graph",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
    )
    return Graph(svg, len(drawn_boxes), sum(len(box.members) for box in left))


# -- folding -----------------------------------------------------------------------------------------


def _folded_siblings(nodes: Sequence[Node]) -> list[_Box]:
    """Put together members with the same task, the same dependencies and the same dependants."""
    dependants: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for each in node.depends_on:
            dependants[each].append(node.id)
    alike: dict[object, list[Node]] = defaultdict(list)
    for node in nodes:
        neighbours = (node.label, tuple(sorted(node.depends_on)), tuple(sorted(dependants[node.id])))
        alike[neighbours].append(node)
    boxes = []
    for members in alike.values():
        # A list of jobs that depend on nothing and lead to nothing is a group as well.
        boxes += [_Box(members)] if len(members) >= FOLD_FROM else [_Box([member]) for member in members]
    return boxes


def _folded_chains(boxes: list[_Box]) -> list[_Box]:
    """Put together boxes that follow each other without a branch, where there are many."""
    kept, seen = [], set()
    for box in boxes:
        if id(box) in seen or _continues(box):
            continue
        run = [box]
        while len(run[-1].after) == 1 and _continues(following := next(iter(run[-1].after))):
            run.append(following)
        seen |= {id(each) for each in run}
        if len(run) < CHAIN_FROM:
            kept += run
        else:  # its ends stay: they are what a reader looks for
            kept += [run[0], _Box([member for each in run[1:-1] for member in each.members]), run[-1]]
    return kept + [
        box for box in boxes if id(box) not in seen
    ]  # members of a circle, which no store should have


def _continues(box: _Box) -> bool:
    """Whether a box has one predecessor, which leads to it alone."""
    return len(box.before) == 1 and len(next(iter(box.before)).after) == 1


def _linked(boxes: list[_Box], nodes: Iterable[Node]) -> list[_Box]:
    """Connect the boxes by the dependencies of their members."""
    of = {member.id: box for box in boxes for member in box.members}
    for box in boxes:
        box.before, box.after = set(), set()
    for node in nodes:
        box = of[node.id]
        for each in node.depends_on:
            before = of.get(each)
            if before is not None and before is not box:
                box.before.add(before)
                before.after.add(box)
    return boxes


# -- places ------------------------------------------------------------------------------------------


def _set_columns(boxes: Sequence[_Box]) -> None:
    """Put each box one column behind the last of its predecessors."""
    open_before = {id(box): len(box.before) for box in boxes}
    free = [box for box in boxes if not box.before]
    for box in free:  # grows while it is read
        for after in box.after:
            after.column = max(after.column, box.column + 1)
            open_before[id(after)] -= 1
            if not open_before[id(after)]:
                free.append(after)


def _ordered(boxes: Sequence[_Box]) -> list[list[_Box]]:
    """Order each column by where the neighbours stand, so that few lines cross."""
    by_column: dict[int, list[_Box]] = defaultdict(list)
    for box in boxes:
        by_column[box.column].append(box)
    columns = [by_column[number] for number in sorted(by_column)]
    for number, column in enumerate(columns):
        for row, box in enumerate(column):
            box.column, box.row = number, float(row)
    for _ in range(3):
        for column in columns:
            _sort(column, {id(box): box.before for box in column})
        for column in reversed(columns):
            _sort(column, {id(box): box.after for box in column})
    tallest = max((len(column) for column in columns), default=0)
    for column in columns:
        for row, box in enumerate(column):
            box.row = row + (tallest - len(column)) / 2
    return columns


def _sort(column: list[_Box], neighbours: Mapping[int, set[_Box]]) -> None:
    def place(box: _Box) -> float:
        near = neighbours[id(box)]
        return sum(each.row for each in near) / len(near) if near else box.row

    column.sort(key=place)
    for row, box in enumerate(column):
        box.row = float(row)


# -- drawing -----------------------------------------------------------------------------------------


def _corner(box: _Box) -> tuple[float, float]:
    return _MARGIN + box.column * (_WIDTH + _GAP_X), _MARGIN + box.row * (_HEIGHT + _GAP_Y)


def _line(before: _Box, after: _Box) -> Svg:
    (x1, y1), (x2, y2) = _corner(before), _corner(after)
    x1, y1, y2 = x1 + _WIDTH, y1 + _HEIGHT / 2, y2 + _HEIGHT / 2
    middle = (x1 + x2) / 2
    path = f"M{x1:.0f} {y1:.0f}C{middle:.0f} {y1:.0f} {middle:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"
    return element("path", d=path, class_="edge")


def _drawn(box: _Box) -> Svg:
    x, y = _corner(box)
    size = len(box.members)
    labels = {member.label for member in box.members}
    label = box.first.label if len(labels) == 1 else counted(len(labels), "task")
    name = (
        shortened(label, LABEL_MAX)
        if size == 1
        else f"{shortened(label, LABEL_MAX - 8)} \N{MULTIPLICATION SIGN} {size:,}"
    )
    counts = box.counts
    words = ", ".join(f"{counts[state]:,} {state}" for state in STATES if counts[state])
    state = box.state if size == 1 else words
    shapes = [
        element("title", f"{label}: {words}"),
        element("rect", x=x, y=y, width=_WIDTH, height=_HEIGHT, rx=6, class_="node"),
        element("text", name, x=x + 12, y=y + 19, class_="node-label"),
        element("text", shortened(state, 30), x=x + 12, y=y + 36, class_="node-state"),
        *_shares(counts, size, x, y),
    ]
    group = element("g", *shapes, class_=f"box {box.state}" + (" folded" if size > 1 else ""))
    href = box.first.href
    return group if href is None or size > 1 else element("a", group, href=href)


def _shares(counts: Counter[str], size: int, x: float, y: float) -> list[Svg]:
    """Draw a line along the node's lower edge: how much of it is in which state."""
    drawn, at = [], x + 6
    for state in STATES:
        if counts[state]:
            width = (_WIDTH - 12) * counts[state] / size
            drawn.append(
                element("rect", x=at, y=y + _HEIGHT - 5, width=width, height=3, class_=f"share {state}")
            )
            at += width
    return drawn
