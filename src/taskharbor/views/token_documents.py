"""The documents of tokens, which only the command line shows."""

from __future__ import annotations

from typing import Any, Self

from taskharbor.records import (
    TokenRecord,
)
from taskharbor.views.documents import Document, Time, instant


class TokenDocument(Document):
    """What the store keeps of a token."""

    id: str
    name: str
    role: str
    created_at: Time | None
    expires_at: Time | None

    @classmethod
    def of(cls, source: TokenRecord, **others: Any) -> Self:
        created_at, expires_at = instant(source.created_at), instant(source.expires_at)
        return super().of(source, created_at=created_at, expires_at=expires_at, **others)


class NewToken(TokenDocument):
    """A token as it is shown once."""

    token: str


class TokenList(Document):
    """Tokens, without the tokens themselves."""

    items: list[TokenDocument]
    next_cursor: None
