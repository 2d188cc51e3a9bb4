"""The graph of a workflow: which job waits for which, and which results it takes. Pure.

A part of a workflow is placed after a `Point`: what came before it, as what it hands on and as whom to wait for.
Those are two things: a group of nothing hands on an empty list, and what follows must still wait for what
came before the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError, PayloadError
from taskharbor.records import Takes

if TYPE_CHECKING:
    from taskharbor.client.task import Signature

MEMBERS_MAX = 100_000
DEPENDENCIES_MAX = 500_000
NESTING_MAX = 100

Value = (
    Any  # the index of a member, or a list of values: whose results are passed on, and how they are nested
)
Shape = Any  # JSON: how it was composed, to draw it and to build its result


class Point(Struct, frozen=True, gc=False):
    """A place in a workflow: the value passed on there, and the members to wait for."""

    value: Value
    after: tuple[int, ...]


class Member(Struct, frozen=True, gc=False):
    signature: Any  # Signature
    after: tuple[int, ...]
    takes: Takes | None


class Graph(Struct, frozen=True):
    members: tuple[Member, ...]
    shape: Shape


# -- parts, as this module sees them -----------------------------------------------------------------


class Sequential(Struct, frozen=True):
    """Parts that run one after another."""

    parts: tuple[Any, ...]


class Parallel(Struct, frozen=True):
    """Parts that run at the same time."""

    parts: tuple[Any, ...]


class Joined(Struct, frozen=True):
    """A group, and a finalizer that takes its results."""

    group: Parallel
    body: Any


class Woven(Struct, frozen=True):
    """Parts by name, and the names that each comes after: a list, or a text for a single one."""

    parts: Mapping[str, Any]
    after: Mapping[str, str | tuple[str, ...] | None]


Part = Any  # a Signature or one of these


def graph_of(part: Part) -> Graph:
    """Place every part, or raise a `ConfigurationError` or `PayloadError` that says what is wrong."""
    placing = _Placing()
    shape, _ = placing.place(part, None, 0)
    return Graph(tuple(placing.members), shape)


class _Placing:
    def __init__(self) -> None:
        self.members: list[Member] = []
        self._dependencies = 0
        # The `id()` of options that were checked to name no job: most signatures share theirs.
        self._nameless: set[int] = set()

    def place(self, part: Part, before: Point | None, depth: int) -> tuple[Shape, Point]:
        if depth > NESTING_MAX:
            raise ConfigurationError(
                f"a workflow is nested deeper than {NESTING_MAX} levels; put steps of a chain side by side instead"
            )
        if hasattr(part, "takes_result"):  # a signature; checked first, since most parts are
            index = self._member(part, before)
            return index, Point(index, (index,))
        match part:
            case Sequential(parts):
                return self._sequential(parts, before, depth)
            case Parallel(parts):
                return self._parallel(parts, before, depth)
            case Joined(group, body):
                group_shape, between = self._parallel(group.parts, before, depth)
                body_shape, end = self.place(body, between, depth + 1)
                return {"chord": [group_shape, body_shape]}, end
            case Woven():
                return self._woven(part, before, depth)
        raise ConfigurationError(
            f"a workflow is made of signatures such as task.s(1), and of chain, group and chord, not of {shorten(part)}"
        )

    def _sequential(self, parts: Sequence[Part], before: Point | None, depth: int) -> tuple[Shape, Point]:
        shapes = []
        point = before
        for part in parts:
            shape, point = self.place(part, point, depth + 1)
            shapes.append(shape)
        assert point is not None, "a chain has at least one step"
        return {"chain": shapes}, point

    def _parallel(self, parts: Sequence[Part], before: Point | None, depth: int) -> tuple[Shape, Point]:
        first = len(self.members)
        shapes, points = [], []
        for part in parts:
            shape, point = self.place(part, before, depth + 1)
            shapes.append(shape)
            points.append(point)
        point = Point([point.value for point in points], _all_of(points, before))
        if shapes and all(type(shape) is int for shape in shapes):
            return {"group": {"first": first, "count": len(shapes)}}, point
        return {"group": shapes}, point

    def _woven(self, woven: Woven, before: Point | None, depth: int) -> tuple[Shape, Point]:
        shapes: dict[str, Shape] = {}
        points: dict[str, Point] = {}
        followed: set[str] = set()
        for name in _in_order(woven):
            after = woven.after[name]
            names = (after,) if isinstance(after, str) else after or ()
            followed.update(names)
            incoming = before
            if isinstance(after, str):
                incoming = points[after]
            elif names:
                incoming = Point(
                    [points[each].value for each in names], _all_of([points[each] for each in names])
                )
            shapes[name], points[name] = self.place(woven.parts[name], incoming, depth + 1)
        ends = [name for name in woven.parts if name not in followed]
        shape = {
            "graph": [
                {
                    "name": name,
                    "part": shapes[name],
                    "after": [after] if isinstance(after, str) else list(after or ()),
                }
                for name, after in woven.after.items()
            ],
            "ends": ends,
        }
        end_points = [points[name] for name in ends]
        if len(ends) == 1:
            return shape, end_points[0]
        return shape, Point([point.value for point in end_points], _all_of(end_points))

    def _member(self, signature: Signature[Any], before: Point | None) -> int:
        if len(self.members) == MEMBERS_MAX:
            raise ConfigurationError(
                f"a workflow takes at most {MEMBERS_MAX:,} jobs; give each more to do, or split the workflow"
            )
        if id(signature.options) not in self._nameless:
            _refuse_own_names(signature)
            self._nameless.add(id(signature.options))
        after = () if before is None else before.after
        self._dependencies += len(after)
        if self._dependencies > DEPENDENCIES_MAX:
            raise ConfigurationError(
                f"a workflow takes at most {DEPENDENCIES_MAX:,} dependencies between its jobs; where a group follows a "
                "group, put one step between them, which takes the first one's results and hands on what is needed"
            )
        takes = None if before is None or not signature.takes_result else _takes(signature, before)
        _refuse_missing(signature, takes)
        self.members.append(Member(signature, after, takes))
        return len(self.members) - 1


def _all_of(points: Iterable[Point], before: Point | None = None) -> tuple[int, ...]:
    after = tuple(dict.fromkeys(index for point in points for index in point.after))
    return after or (() if before is None else before.after)


def _in_order(woven: Woven) -> list[str]:
    """Sort the parts so that each follows those it comes after."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name, after in woven.after.items():
        names = (after,) if isinstance(after, str) else after or ()
        for each in names:
            if each not in woven.parts:
                raise ConfigurationError(
                    f"{name!r} comes after {each!r}, which is not in the workflow; its steps are "
                    f"{', '.join(map(repr, list(woven.parts)[:20]))}"
                )
        sorter.add(name, *names)
    try:
        return list(sorter.static_order())
    except CycleError as error:
        circle = " after ".join(repr(name) for name in error.args[1][::-1])
        raise ConfigurationError(f"the workflow goes in a circle: {circle}; take one of these out") from None


# -- results -----------------------------------------------------------------------------------------


def _takes(signature: Signature[Any], before: Point) -> Takes:
    """Pass the value to the first parameter that is not given."""
    plan = signature.task.plan
    parameter = next((name for name in plan.parameters if name not in signature.arguments), None)
    if parameter is None:
        raise PayloadError(
            f"task {signature.task.name!r} has no parameter left to take the result of what comes before it; "
            "use .si(…) to take nothing of it"
        )
    positions = {index: position for position, index in enumerate(before.after)}
    if before.value == list(before.after):
        return Takes(parameter)
    return Takes(parameter, _positions(before.value, positions))


def _positions(value: Value, positions: dict[int, int]) -> Any:
    return [_positions(each, positions) for each in value] if isinstance(value, list) else positions[value]


def _refuse_missing(signature: Signature[Any], takes: Takes | None) -> None:
    if not signature.task.plan.required:
        return
    given = signature.arguments
    taken = None if takes is None else takes.parameter
    missing = [name for name in signature.task.plan.required if name not in given and name != taken]
    if missing:
        what = ", ".join(map(repr, missing))
        raise PayloadError(
            f"{signature!r} needs {what}, and nothing in the workflow gives it; "
            + ("a step takes the result of the one before it only" if takes else "nothing comes before it")
        )


def _refuse_own_names(signature: Signature[Any]) -> None:
    for option in ("id", "idempotency_key"):
        if signature.options.get(option) is not None:
            raise ConfigurationError(
                f"{signature!r} has an {option.replace('_', ' ')} of its own, and a member of a workflow takes none; "
                f"give it to the workflow: chain(…).using({option}=…)"
            )


# -- reading a shape ---------------------------------------------------------------------------------


def value_of(shape: Shape) -> Value:
    """Return which members' results make up the workflow's result, and how they are nested."""
    if isinstance(shape, int):
        return shape
    match shape:
        case {"chain": [*_, last]}:
            return value_of(last)
        case {"group": {"first": first, "count": count}}:
            return list(range(first, first + count))
        case {"group": [*parts]}:
            return [value_of(part) for part in parts]
        case {"chord": [_, body]}:
            return value_of(body)
        case {"graph": [*nodes], "ends": [*ends]}:
            values = {node["name"]: value_of(node["part"]) for node in nodes}
            return values[ends[0]] if len(ends) == 1 else [values[name] for name in ends]
    raise ConfigurationError(f"this version of TaskHarbor does not know the shape {shorten(shape)}")


def indexes_in(value: Value) -> list[int]:
    if isinstance(value, int):
        return [value]
    return [index for each in value for index in indexes_in(each)]


def filled(value: Value, results: Mapping[int, Any]) -> Any:
    """Return the same nesting with each member replaced by its result."""
    return [filled(each, results) for each in value] if isinstance(value, list) else results[value]
