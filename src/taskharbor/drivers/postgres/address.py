"""The URL of a PostgreSQL store: what may stand behind its `?`, and what to say when a part of it is wrong."""

from __future__ import annotations

import os
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from asyncpg import exceptions
from msgspec import Struct

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError

OURS = ("schema", "listen", "connections")

CONNECTIONS = 8  # of one event loop, at most
CONNECTIONS_MIN = 4  # to claim, to settle, to listen, and for the rest
CONNECTIONS_MAX = 100

# What asyncpg itself reads from a URL. It hands all else to the server, as settings of the session.
CONNECTION = (
    *("host", "port", "user", "password", "passfile", "dbname", "database", "service"),
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslcrl", "sslnegotiation"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version"),
    *("target_session_attrs", "krbsrvname", "gsslib"),
)
_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")

_FORM = "postgresql://user:password@host:port/database"
_BEHIND = (
    f"Behind the ? of the URL may stand {', '.join(OURS)}, what asyncpg takes ({', '.join(CONNECTION)}), "
    "and settings of the server, such as statement_timeout=5s"
)


class Address(Struct, frozen=True):
    dsn: str  # for asyncpg: without what is ours
    schema: str
    listen: bool
    connections: int = CONNECTIONS


def read_url(url: str) -> Address:
    """postgresql://user@host:5432/database?schema=taskharbor&listen=on, and what else asyncpg or the server takes."""
    parts = _split(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    where = address_of(url)
    listen = options.pop("listen", "on")
    if listen not in ("on", "off"):
        raise ConfigurationError(f"?listen= is on or off, not {shorten(listen)}, in {where}")
    schema = options.pop("schema", "taskharbor")
    given = options.pop("connections", str(CONNECTIONS))
    is_number = given.isascii() and given.isdigit() and len(given) < 10
    connections = checked_connections(int(given) if is_number else given, f"?connections= of {where}")
    for name, value in options.items():
        if not value or not name:
            raise ConfigurationError(
                f"{shorten(name) if name else 'a value'} in the URL of {where} has no "
                f"{'value' if name else 'name'}; write ?name=value, or leave it out. {_BEHIND}"
            )
        if "\0" in name + value:
            raise ConfigurationError(
                f"{shorten(name)} in the URL of {where} holds a NUL character; remove it"
            )
    return Address(
        urlunsplit(parts._replace(query=urlencode(options))), schema, listen == "on", int(connections)
    )


def checked_connections(number: object, name: str = "connections") -> int:
    if (
        isinstance(number, bool)
        or not isinstance(number, int)
        or not CONNECTIONS_MIN <= number <= CONNECTIONS_MAX
    ):
        raise ConfigurationError(
            f"{name} must be a whole number from {CONNECTIONS_MIN} (to claim, to settle, to listen, and for the rest) "
            f"to {CONNECTIONS_MAX}, not {shorten(number)}"
        )
    return number


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # whose text may quote a part of the password
        raise ConfigurationError(
            f"the host in the URL of the store cannot be read; write {_FORM}, with an IPv6 address in brackets "
            "and percent-encoding for special characters in the password"
        ) from None


def address_of(dsn: str) -> str:
    """The servers and the database, without the password."""
    parts = _split(dsn)
    # There may be several hosts; and of a URL whose password was not encoded, a part of that may stand as a port.
    hosts = [
        each if each.rpartition(":")[2].isdigit() or each.endswith("]") else each.partition(":")[0]
        for each in parts.netloc.rpartition("@")[2].split(",")
    ]
    return f"postgresql://{','.join(hosts) or 'localhost'}{parts.path}"


def user_of(dsn: str) -> str:
    return _split(dsn).username or "the current user"


def names_application(dsn: str) -> bool:
    return "application_name" in dict(parse_qsl(_split(dsn).query))


def refused_address(error: Exception, dsn: str) -> ConfigurationError | None:
    """What is wrong with the URL, if that is why no connection could be made. Trying again would not help."""
    where, text = address_of(dsn), str(error).partition("\n")[0]
    if isinstance(error, exceptions.UndefinedObjectError) or (
        # A pooler's words for it: it looks at the settings itself.
        isinstance(error, exceptions.ProtocolViolationError) and "unsupported startup parameter" in text
    ):
        return ConfigurationError(f"{where} knows no such parameter: {text}. {_BEHIND}")
    if isinstance(
        error, exceptions.DataError | exceptions.CantChangeRuntimeParamError | exceptions.PostgresSyntaxError
    ):
        return ConfigurationError(
            f"{where} refuses a setting in the URL: {text}. Correct it, or leave it out"
        )
    if isinstance(error, exceptions.ClientConfigurationError):
        return ConfigurationError(f"the URL of {where} cannot be used: {text}")
    if isinstance(error, ValueError) and not isinstance(error, exceptions.InterfaceError):
        return ConfigurationError(
            f"the host and port in the URL of {where} cannot be read; write {_FORM}, with percent-encoding for "
            "special characters in the password"
        )
    if isinstance(error, FileNotFoundError):
        named = dict(parse_qsl(_split(dsn).query))
        for name in _FILES:
            if name in named and not os.path.exists(named[name]):
                return ConfigurationError(
                    f"{name} in the URL of {where} names no file: {shorten(named[name])}"
                )
    return None
