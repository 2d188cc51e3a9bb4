"""The parts of workflows: chain, group, chord, and the steps of `Workflow().add(…)`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.client.options import checked_id
from taskharbor.client.sync_methods import sync_method
from taskharbor.client.task import HABITS, Signature, missing_attribute
from taskharbor.codec import KEY_LIMIT, checked_name, shorten
from taskharbor.drivers.base import Driver
from taskharbor.errors import ConfigurationError
from taskharbor.rules.meta import checked_meta
from taskharbor.workflow.graph import Joined, Parallel, Part, Sequential, Woven

if TYPE_CHECKING:
    import uuid

    from taskharbor.client.harbor import Harbor
    from taskharbor.workflow.handle import Workflow

OnFailure = Literal["wait", "cancel"]


class WorkflowOptions(Struct, frozen=True):
    id: str | None = None
    idempotency_key: str | None = None
    on_failure: OnFailure = "wait"
    failure_task: Any = None  # Signature
    correlation_id: str | None = None
    meta: str | None = None


NO_OPTIONS = WorkflowOptions()


class Composition:
    """A composition that can be enqueued as a workflow, or be a part of another one."""

    _options: WorkflowOptions = NO_OPTIONS

    if not TYPE_CHECKING:  # so that type checkers still find the slip

        def __getattr__(self, name):
            raise missing_attribute(self, name, "enqueue()" if name in HABITS else None)

    def _part(self) -> Part:
        """Return this as a part of the graph."""
        raise NotImplementedError

    def _copy(self) -> Self:
        raise NotImplementedError

    def using(
        self,
        *,
        id: str | uuid.UUID | None = None,
        idempotency_key: str | None = None,
        on_failure: OnFailure | None = None,
        failure_task: Signature[Any] | None = None,
        correlation_id: str | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the same with options for the workflow as a whole.

        `on_failure` says what becomes of those that depend on a member which is dead or cancelled: they `"wait"`,
        and the workflow is stuck until that member is retried, or they are cancelled (`"cancel"`).
        `failure_task` is enqueued when a member dies, in the same transaction, once for each workflow; it
        takes a dictionary that says what died, by its first parameter that is not given. `meta` is inherited by
        every member; a member's own entries win.
        """
        given: dict[str, Any] = {}
        if id is not None:
            given["id"] = checked_id(id)
        if idempotency_key is not None:
            given["idempotency_key"] = checked_name("idempotency key", idempotency_key, KEY_LIMIT)
        if on_failure is not None:
            if on_failure not in ("wait", "cancel"):
                raise ConfigurationError(f'on_failure must be "wait" or "cancel", not {shorten(on_failure)}')
            given["on_failure"] = on_failure
        if failure_task is not None:
            if not isinstance(failure_task, Signature):
                raise ConfigurationError(
                    f"failure_task takes a signature such as alert.s(), not {shorten(failure_task)}"
                )
            given["failure_task"] = failure_task
        if correlation_id is not None:
            given["correlation_id"] = checked_name("correlation id", correlation_id)
        if meta is not None:
            given["meta"] = checked_meta(meta)
        copy = self._copy()
        copy._options = replace(self._options, **given)
        return copy

    async def aenqueue(self) -> Workflow:
        """Store all of its jobs in one call, or none."""
        from taskharbor.workflow.storing import store_workflow

        return await store_workflow(self._harbor, self._part(), self._options)

    enqueue = sync_method(aenqueue)

    @property
    def _harbor(self) -> Harbor:
        harbor = next((signature.task.harbor for signature in signatures_in(self._part())), None)
        if harbor is None:
            raise ConfigurationError(
                "a workflow of nothing does not know its harbor; enqueue it with harbor.workflows.enqueue(…)"
            )
        return harbor

    @property
    def _driver(self) -> Driver:
        return self._harbor.driver


class Chain(Composition):
    def __init__(self, parts: tuple[Part, ...]) -> None:
        self._parts = parts

    def _part(self) -> Part:
        return Sequential(self._parts)

    def _copy(self) -> Self:
        return type(self)(self._parts)

    def __repr__(self) -> str:
        return f"<chain of {len(self._parts)}>"


class Group(Composition):
    def __init__(self, parts: tuple[Part, ...]) -> None:
        self._parts = parts

    def _part(self) -> Parallel:
        return Parallel(self._parts)

    def _copy(self) -> Self:
        return type(self)(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __repr__(self) -> str:
        return f"<group of {len(self._parts)}>"


class Chord(Composition):
    def __init__(self, group: Parallel, body: Part) -> None:
        self._group = group
        self._body = body

    def _part(self) -> Part:
        return Joined(self._group, self._body)

    def _copy(self) -> Self:
        return type(self)(self._group, self._body)

    def __repr__(self) -> str:
        return f"<chord of {len(self._group.parts)}>"


Written = Signature[Any] | Composition


def chain(*steps: Written | Iterable[Written]) -> Chain:
    """One step after another; each takes the result of the step before it: `chain(fetch.s("u"), parse.s())`."""
    parts = _parts(steps)
    if not parts:
        raise ConfigurationError("a chain needs at least one step; for example chain(first.s(1), second.s())")
    return Chain(parts)


def group(*members: Written | Iterable[Written]) -> Group:
    """All at the same time; its result is the list of theirs: `group(resize.s(i) for i in ids)`."""
    return Group(_parts(members))


def chord(members: Written | Iterable[Written], finalizer: Written) -> Chord:
    """A group, and a finalizer that takes the list of its results when all have succeeded:
    `chord([resize.s(i) for i in ids], publish.s())`.
    """
    if isinstance(members, Group) and members._options is NO_OPTIONS:
        return Chord(members._part(), part_of(finalizer))
    return Chord(Parallel(_parts((members,))), part_of(finalizer))


def _parts(written: tuple[Any, ...]) -> tuple[Part, ...]:
    """Accept parts one by one, or as one iterable."""
    if len(written) == 1 and not isinstance(written[0], Signature | Composition):
        [only] = written
        if isinstance(only, str) or not isinstance(only, Iterable):
            raise _no_part(only)
        written = tuple(only)
    return tuple(part_of(each) for each in written)


def part_of(written: Any) -> Part:
    if isinstance(written, Signature):
        return written
    if not isinstance(written, Composition):
        raise _no_part(written)
    if written._options is not NO_OPTIONS:
        raise ConfigurationError(
            f"{written!r} has options of a workflow, but it is only a part of one; "
            "give them to the whole: chain(…).using(…)"
        )
    return written._part()


def _no_part(written: object) -> ConfigurationError:
    return ConfigurationError(
        f"a workflow is made of signatures such as task.s(1), and of chain, group and chord, not of {shorten(written)}"
    )


def signatures_in(part: Part) -> Iterator[Signature[Any]]:
    """Yield every signature, without recursion: the graph checks the depth."""
    stack = [part]
    while stack:
        match stack.pop():
            case Sequential(parts) | Parallel(parts):
                stack.extend(reversed(parts))
            case Joined(members, body):
                stack += [body, members]
            case Woven(parts):
                stack.extend(reversed(list(parts.values())))
            case signature:
                yield signature


class Node(Struct, frozen=True):
    """A step of a `Workflow()`, for others to come after."""

    name: str


class Weaving:
    """The steps of a `Workflow()` that is being built."""

    def __init__(self) -> None:
        self.parts: dict[str, Part] = {}
        self.after: dict[str, str | tuple[str, ...] | None] = {}

    def add(
        self, step: Written, after: Node | str | Iterable[Node | str] | None = None, name: str | None = None
    ) -> Node:
        chosen = checked_name("step", name) if name is not None else f"step-{len(self.parts) + 1}"
        if chosen in self.parts:
            raise ConfigurationError(
                f"the workflow has a step {chosen!r} already; give this one another name"
            )
        self.after[chosen] = _named(after)
        self.parts[chosen] = part_of(step)
        return Node(chosen)

    def copy(self) -> Weaving:
        copy = Weaving()
        copy.parts, copy.after = dict(self.parts), dict(self.after)
        return copy


def _named(after: Any) -> str | tuple[str, ...] | None:
    if after is None:
        return None
    if isinstance(after, Node):
        return after.name
    if isinstance(after, str):
        return after
    if not isinstance(after, Iterable):
        raise ConfigurationError(
            f"after takes what add(…) gave, a name, or a list of them, not {shorten(after)}"
        )
    names = tuple(_named(each) for each in after)
    if not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            f"after takes what add(…) gave, a name, or a list of them, not {shorten(after)}"
        )
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))
