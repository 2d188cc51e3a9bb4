"""FastAPI: enqueue in the transaction of the request's session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Literal

from fastapi import Depends

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor


def transaction(
    harbor: Harbor, session: Callable[..., Any], *, scope: Literal["function", "request"] | None = None
) -> Callable[..., AsyncIterator[Any]]:
    """Return a dependency that gives the request's session, and lets the request enqueue in its transaction.

        Transaction = Annotated[AsyncSession, Depends(transaction(harbor, get_session))]

    `session` is the dependency that makes the session, synchronous or not. Jobs that the request enqueues exist if and
    only if that session commits. `scope` is that of the session's dependency, if it has one.
    """

    if not callable(session):
        raise ConfigurationError(
            "transaction(harbor, session) takes the function that FastAPI calls for a session, "
            f"such as get_session, not {shorten(session)}"
        )
    given_by = Depends(session, scope=scope)

    # Asynchronous, so that the endpoint runs in its context; FastAPI gives a synchronous one a context of its own.
    async def in_transaction(given: Any = given_by) -> AsyncIterator[Any]:
        with harbor.transaction(given):
            yield given

    return in_transaction
