"""The caller's own transaction, as the client sees it: which block a call stands in, and what may not be done there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from taskharbor.errors import ConfigurationError

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor


class Block:
    """One `with harbor.transaction(connection):`."""

    __slots__ = ("harbor", "outer", "over")

    def __init__(self, harbor: Harbor, outer: Block | None) -> None:
        self.harbor = harbor
        self.outer = outer
        self.over = False

    def refuse_when_over(self) -> None:
        """A task that was started inside the block still sees it afterwards: what it enqueued on that connection
        would be committed by nobody."""
        if self.over:
            raise ConfigurationError(
                "this was started inside a transaction() block that has ended since; "
                "wait for it inside the block, or start it outside"
            )


_blocks: ContextVar[Block | None] = ContextVar("taskharbor_blocks", default=None)


def block_of(harbor: Harbor) -> Block | None:
    """The innermost block of this harbor that the call stands in."""
    block = _blocks.get()
    while block is not None and block.harbor is not harbor:
        block = block.outer
    return block


@contextmanager
def transaction_block(harbor: Harbor) -> Iterator[None]:
    block = Block(harbor, _blocks.get())
    reset = _blocks.set(block)
    try:
        yield
    finally:
        block.over = True
        _blocks.reset(reset)


def refuse_inside_transaction(harbor: Harbor, verb: str) -> None:
    """Other writes use a connection of our own, which would wait for the caller's to commit: for ever."""
    block = block_of(harbor)
    if block is not None and not block.over and harbor.driver.in_transaction():
        raise ConfigurationError(
            f"{verb} cannot take part in transaction(), only enqueueing can; do it before or after the block"
        )
