"""Tokens of the REST interface and their roles. The store keeps a digest, never the token."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import timedelta
from enum import StrEnum

from taskharbor.client.actions import new_action
from taskharbor.clock import check_seconds, seconds_to_micros
from taskharbor.codec import checked_name, shorten
from taskharbor.drivers.base import Driver, Verb
from taskharbor.drivers.typed_records import TOKENS
from taskharbor.errors import ConfigurationError
from taskharbor.records import TokenRecord

PREFIX = "thb"  # lets scanners find a token that leaked into a log or a repository
TOKENS_MAX = 1_000


class Role(StrEnum):
    """What a caller may do. Each role includes those before it."""

    READ = "read"  # look at everything but secrets
    WRITE = "write"  # enqueue jobs, and change single jobs and schedules
    ADMIN = "admin"  # stop queues, and change many jobs at once

    def allows(self, needed: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(needed)


def checked_role(value: object) -> Role:
    try:
        return Role(str(value))
    except ValueError:
        raise ConfigurationError(f"a role is {', '.join(Role)}, not {shorten(value)}") from None


async def create_token(
    driver: Driver, name: str, role: str, expires_in: float | timedelta | None = None
) -> tuple[str, TokenRecord]:
    """Create a token; return it, to be shown once, with the record that the store keeps."""
    kept = await TOKENS.all(driver)
    if len(kept) >= TOKENS_MAX:
        raise ConfigurationError(f"the store has {TOKENS_MAX} tokens already; revoke unused ones")
    token_id = secrets.token_hex(6)
    token = f"{PREFIX}_{token_id}_{secrets.token_urlsafe(32)}"
    now = await driver.now()
    expires_at = None
    if expires_in is not None:
        if check_seconds(expires_in, "expires_in", least="above 0, up to") == 0:
            raise ConfigurationError("a token must last for more than 0 seconds")
        expires_at = now + seconds_to_micros(expires_in, "expires_in")
    record = TokenRecord(
        token_id, checked_name("name", name), checked_role(role), digest_of(token), now, expires_at
    )
    details = {"name": record.name, "role": record.role}
    await TOKENS.put(
        driver, [record], action=new_action(Verb.CREATE_TOKEN, subject=token_id, details=details)
    )
    return token, record


async def revoke_token(driver: Driver, token_id: str) -> bool:
    """Revoke the token with this id; return whether there was one."""
    names = [record.name for record in await TOKENS.all(driver) if record.id == token_id]
    details = {"name": names[0]} if names else None
    action = new_action(Verb.REVOKE_TOKEN, subject=token_id, details=details)
    return await TOKENS.drop(driver, [token_id], action=action) > 0


def digest_of(token: str) -> str:
    # 256 random bits need no slow hash: trying them all is impossible.
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def matching(token: str, records: dict[str, TokenRecord]) -> TokenRecord | None:
    """Return the record of this token, expired or not, in a time that reveals nothing about the digest."""
    record = records.get(token[len(PREFIX) + 1 :].partition("_")[0])
    if not hmac.compare_digest(digest_of(token), record.digest if record is not None else "0" * 64):
        return None
    return record
