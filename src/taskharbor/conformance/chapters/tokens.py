"""Tokens of the REST interface: kept, listed and forgotten."""

from __future__ import annotations

from taskharbor.conformance.store import DAY, Chapter, Store
from taskharbor.records import TokenRecord


class Tokens(Chapter):
    def test_tokens_are_kept_until_they_are_removed(self, store: Store) -> None:
        """Every field of each comes back as it was given, the oldest first, until it is removed."""
        older = TokenRecord("b", "deployment", "write", "0" * 64, store.now, store.now + DAY)
        newer = TokenRecord("a", "überwachung", "read", "f" * 64, store.now + 1)
        assert store.run(store.driver.tokens()) == []
        store.run(store.driver.add_token(newer))
        store.run(store.driver.add_token(older))
        assert store.run(store.driver.tokens()) == [older, newer]
        assert store.run(store.driver.remove_token("b")) is True
        assert store.run(store.driver.remove_token("b")) is False
        assert store.run(store.driver.tokens()) == [newer]
