"""`harbor.transaction(…)`: which block a call is in, and what it may not do there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from taskharbor.errors import ConfigurationError

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.drivers.capabilities import Transactions


class Block:
    """One `with harbor.transaction(connection):`."""

    __slots__ = ("harbor", "outer", "over")

    def __init__(self, harbor: Harbor, outer: Block | None) -> None:
        self.harbor = harbor
        self.outer = outer
        self.over = False

    def refuse_when_over(self) -> None:
        """Refuse after the end of the block. An asyncio task that was started inside still sees the block, but no
        commit would follow."""
        if self.over:
            raise ConfigurationError(
                "this was started inside a transaction() block that has ended since; "
                "wait for it inside the block, or start it outside"
            )


_blocks: ContextVar[Block | None] = ContextVar("taskharbor_blocks", default=None)


def block_of(harbor: Harbor) -> Block | None:
    """Return the innermost block of this harbor that the call is in."""
    block = _blocks.get()
    while block is not None and block.harbor is not harbor:
        block = block.outer
    return block


class Transaction:
    """A block for enqueueing in the caller's transaction, entered by `with` or by `async with`.

    Both do the same: the caller begins and commits the transaction, so nothing here waits.
    """

    def __init__(self, harbor: Harbor, connection: object, *, same_database: bool = False) -> None:
        self._harbor = harbor
        self._connection = connection
        # The harbor was made from the settings of this connection, so there is nothing to compare.
        self._known = {"same_database": True} if same_database else {}
        self._undo: ExitStack | None = None

    def __enter__(self) -> None:
        if self._undo is not None:
            raise ConfigurationError(
                "this transaction() is entered already; call harbor.transaction(…) for each block"
            )
        with ExitStack() as undo:
            undo.enter_context(_capability(self._harbor).transaction(self._connection, **self._known))
            undo.enter_context(_block(self._harbor))
            self._undo = undo.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        assert self._undo is not None, "a block that was not entered is not left"
        undo, self._undo = self._undo, None
        undo.__exit__(kind, error, trace)
        return False

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        return self.__exit__(kind, error, trace)


@contextmanager
def _block(harbor: Harbor) -> Iterator[None]:
    block = Block(harbor, _blocks.get())
    reset = _blocks.set(block)
    try:
        yield
    finally:
        block.over = True
        _blocks.reset(reset)


def refuse_inside_transaction(harbor: Harbor, verb: str) -> None:
    """Refuse other writes: they use another connection, which would wait for the caller's commit without end."""
    block = block_of(harbor)
    if block is not None and not block.over and _capability(harbor).in_transaction():
        raise ConfigurationError(
            f"{verb} cannot take part in transaction(), only enqueueing can; do it before or after the block"
        )


def _capability(harbor: Harbor) -> Transactions:
    from taskharbor.drivers.capabilities import Transactions  # most programs never enter a block

    return Transactions.of(harbor.driver)
