"""What a person, or a worker that may try again, should know about an error of the server or the network."""

from __future__ import annotations

import asyncio

import asyncpg
from asyncpg import exceptions

from taskharbor.drivers.postgres.address import address_of, user_of
from taskharbor.errors import (
    AccessDenied,
    OperationRefused,
    PayloadError,
    SchemaError,
    StoreError,
    StoreUnavailable,
    TaskHarborError,
)

# Errors after which the same transaction may well succeed: other clients' locks were in the way.
COLLISIONS = (
    exceptions.DeadlockDetectedError,
    exceptions.SerializationError,
    # Two callers with one token, or one key, at the same instant: the second one finds the first one's row.
    exceptions.UniqueViolationError,
)

_AWAY = (
    OSError,
    asyncio.TimeoutError,
    exceptions.PostgresConnectionError,
    exceptions.InterfaceError,
    exceptions.InternalClientError,
    exceptions.OperatorInterventionError,  # shutdown, crash, starting up, a cancelled statement
    exceptions.InsufficientResourcesError,  # disk, memory, connections
    exceptions.ObjectNotInPrerequisiteStateError,  # a lock that was not to be had
    exceptions.ReadOnlySQLTransactionError,  # a standby, after a failover
    exceptions.DeadlockDetectedError,
    exceptions.SerializationError,
    exceptions.PostgresSystemError,
)

# What the content of a row, and nothing else, is to blame for. (Any other broken constraint is a bug of ours.)
_CONTENT = (
    exceptions.DataError,
    exceptions.ProgramLimitExceededError,
    exceptions.CheckViolationError,
)


class Contended(StoreUnavailable):
    """Another transaction holds what this one needs, for longer than this one may wait."""


def state_of(error: BaseException) -> str | None:
    """PostgreSQL's code of an error, wherever the library that it came by keeps it."""
    for each in (error, getattr(error, "orig", None), error.__cause__):
        state = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if isinstance(state, str):
            return state
    return None


def is_conflict(error: BaseException) -> bool:
    """Whether what was to be stored exists already."""
    return state_of(error) == exceptions.UniqueViolationError.sqlstate


def ends_connection(error: asyncpg.PostgresError) -> bool:
    """Whether the connection goes with it: the server has closed it, or will have in a moment."""
    severity = getattr(error, "severity_en", None) or getattr(error, "severity", None)
    return severity in ("FATAL", "PANIC") or isinstance(error, exceptions.PostgresConnectionError)


def explained(error: BaseException, dsn: str, schema: str) -> BaseException:
    """The error as one of ours; itself where it is one already, or nothing is known about it."""
    if isinstance(error, TaskHarborError) or not isinstance(error, Exception):
        return error
    where = address_of(dsn)
    if isinstance(error, exceptions.InvalidAuthorizationSpecificationError):
        user = user_of(dsn)
        return AccessDenied(
            f"{where} does not let {user} in ({text_of(error)}). Check the user name and the password in the URL, "
            "and the server's pg_hba.conf"
        )
    if isinstance(error, exceptions.InvalidCatalogNameError):
        return StoreError(f"{where}: {text_of(error)}. Create it (createdb), or name another one in the URL")
    if isinstance(
        error,
        exceptions.UndefinedTableError
        | exceptions.InvalidSchemaNameError
        | exceptions.UndefinedFunctionError,
    ):
        return missing_schema(dsn, schema)
    if isinstance(error, exceptions.InsufficientPrivilegeError):
        return access_denied(error, dsn, schema)
    # Before the classes above it: a client-side DataError is an InterfaceError as well.
    if isinstance(error, _CONTENT):
        return PayloadError(f"PostgreSQL cannot keep this: {text_of(error)}. Nothing was changed by it")
    if isinstance(error, exceptions.LockNotAvailableError):
        return Contended(f"{where}: another transaction holds a row or a key for too long ({text_of(error)})")
    if isinstance(error, exceptions.CannotConnectNowError):
        return StoreUnavailable(f"{where} is starting up or shutting down ({text_of(error)})")
    if isinstance(error, ConnectionRefusedError):
        return StoreUnavailable(
            f"no PostgreSQL server answers at {where}; is it running, and is the address right?"
        )
    if isinstance(error, _AWAY) or (isinstance(error, asyncpg.PostgresError) and ends_connection(error)):
        return StoreUnavailable(f"{where} cannot be used at the moment: {text_of(error)}")
    if isinstance(error, asyncpg.PostgresError):
        return OperationRefused(f"{where} refused the operation: {text_of(error)}")
    return error


def access_denied(error: BaseException, dsn: str, schema: str) -> AccessDenied:
    """All that the server itself says about it."""
    user = user_of(dsn)
    return AccessDenied(
        f"{address_of(dsn)} does not let {user} do this in the schema {schema}: {text_of(error)}. What a producer, "
        "a worker and an admin need is granted by `taskharbor roles`; only the schema's owner migrates"
    )


def missing_schema(dsn: str, schema: str) -> SchemaError:
    return SchemaError(
        f"{address_of(dsn)} has no TaskHarbor tables in the schema {schema}; "
        "run `taskharbor migrate` once (or Harbor(…).migrate()); nothing was changed"
    )


def text_of(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
