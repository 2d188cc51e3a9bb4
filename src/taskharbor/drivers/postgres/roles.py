"""Least-privilege roles: what a producer, a worker and an admin need in the schema, and nothing beyond it.

Here is the one place that says so: the GRANT statements that `taskharbor roles` prints, the check that a worker
makes before it begins, and the errors about a missing right are all made from it. The schema's owner, who
migrates, has every right anyway. A new table or function of a migration needs its line here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from taskharbor.codec import shorten
from taskharbor.drivers.postgres import sql
from taskharbor.drivers.postgres.address import address_of
from taskharbor.drivers.postgres.explain import access_denied, text_of
from taskharbor.errors import AccessDenied, ConfigurationError

if TYPE_CHECKING:
    from taskharbor.drivers.postgres.connections import Session

ROLE_NAME_BYTES_MAX = 63


class Role(StrEnum):
    PRODUCER = "producer"  # enqueues, and looks at jobs it knows the ids of
    WORKER = "worker"  # does everything a Worker does: executes, collects, expires, prunes, enqueues
    ADMIN = "admin"  # operates: cancels, changes, requeues, deletes, pauses, prunes; does not enqueue


# The rights on each table, by their first letters: Select, Insert, Update, Delete. Locking a row takes Update.
_TABLES: dict[str, dict[Role, str]] = {
    "schema_versions": {Role.PRODUCER: "S", Role.WORKER: "S", Role.ADMIN: "S"},
    "jobs": {Role.PRODUCER: "SI", Role.WORKER: "SIUD", Role.ADMIN: "SUD"},
    "ready": {Role.PRODUCER: "SI", Role.WORKER: "SIUD", Role.ADMIN: "SIUD"},
    "waiting": {Role.PRODUCER: "SI", Role.WORKER: "SIUD", Role.ADMIN: "SIUD"},
    "dependencies": {Role.PRODUCER: "SI", Role.WORKER: "SIUD", Role.ADMIN: "SUD"},
    "tags": {Role.PRODUCER: "I", Role.WORKER: "SID", Role.ADMIN: "SID"},
    "leases": {Role.PRODUCER: "S", Role.WORKER: "SIUD", Role.ADMIN: "SUD"},
    "claiming": {Role.PRODUCER: "", Role.WORKER: "U", Role.ADMIN: ""},  # to lock it
    "claims": {Role.PRODUCER: "S", Role.WORKER: "SIUD", Role.ADMIN: "SUD"},
    "attempts": {Role.PRODUCER: "", Role.WORKER: "SIUD", Role.ADMIN: "SIUD"},
    "settles": {Role.PRODUCER: "", Role.WORKER: "SIUD", Role.ADMIN: "SUD"},
    "settles_id_seq": dict.fromkeys(Role, ""),  # of an identity column: who may insert a row may count it
    "history": dict.fromkeys(Role, "S"),  # a view, which reads with the rights of its owner
    "ended": {Role.PRODUCER: "S", Role.WORKER: "SIUD", Role.ADMIN: "SIUD"},
    "dead_groups": {Role.PRODUCER: "", Role.WORKER: "SIUD", Role.ADMIN: "SIUD"},
    "progress": {Role.PRODUCER: "S", Role.WORKER: "SIUD", Role.ADMIN: "SD"},
    "steps": {Role.PRODUCER: "", Role.WORKER: "SID", Role.ADMIN: "SD"},
    "paused": {Role.PRODUCER: "", Role.WORKER: "S", Role.ADMIN: "SID"},
    "holds": {Role.PRODUCER: "", Role.WORKER: "S", Role.ADMIN: "SID"},
    "backlogs": {Role.PRODUCER: "", Role.WORKER: "SIUD", Role.ADMIN: "S"},
    "backlog_jobs": {Role.PRODUCER: "", Role.WORKER: "SID", Role.ADMIN: "S"},
    "owners": {Role.PRODUCER: "", Role.WORKER: "SIU", Role.ADMIN: ""},
    "workflows": {Role.PRODUCER: "SI", Role.WORKER: "SIUD", Role.ADMIN: "SUD"},
    # Only a function of the owner writes it: who acts may add to the audit, and not rewrite it.
    "actions": {Role.PRODUCER: "", Role.WORKER: "", Role.ADMIN: "S"},
    "actions_number_seq": dict.fromkeys(Role, ""),
    "tallies": {Role.PRODUCER: "", Role.WORKER: "SIUD", Role.ADMIN: "SIUD"},
    # A server reads them; it enqueues and operates, and so needs the rights of a producer and of an admin.
    "tokens": {Role.PRODUCER: "", Role.WORKER: "", Role.ADMIN: "SIUD"},
    "sessions": {Role.PRODUCER: "", Role.WORKER: "", Role.ADMIN: "SIUD"},
    "announcements": dict.fromkeys(Role, ""),  # a sequence that only a function of the owner touches
    "workers": {Role.PRODUCER: "", Role.WORKER: "SIUD", Role.ADMIN: "S"},
    "ingested": {Role.PRODUCER: "", Role.WORKER: "SIU", Role.ADMIN: ""},
    "rollups_appended": {Role.PRODUCER: "", Role.WORKER: "SID", Role.ADMIN: "S"},
    "rollups_folded": {Role.PRODUCER: "", Role.WORKER: "SIUD", Role.ADMIN: "S"},
}
_RIGHTS = {"S": "SELECT", "I": "INSERT", "U": "UPDATE", "D": "DELETE"}

FUNCTIONS: dict[str, frozenset[Role]] = {
    "claim_on_trail": frozenset({Role.WORKER}),
    "take_turn": frozenset({Role.WORKER}),
    "take_unlocked": frozenset({Role.WORKER}),
    "is_claimable": frozenset({Role.WORKER}),
    "set_aside": frozenset({Role.WORKER}),
    "lanes_aside": frozenset({Role.WORKER}),
    "recall": frozenset({Role.WORKER}),
    "ending": frozenset({Role.WORKER, Role.ADMIN}),
    "kind_fingerprint": frozenset({Role.WORKER, Role.ADMIN}),
    "settle_and_release": frozenset({Role.WORKER}),
    "old_successes": frozenset({Role.WORKER, Role.ADMIN}),
    "release_dependants": frozenset({Role.WORKER}),
    "release_satisfied": frozenset({Role.WORKER}),
    "catch_up": frozenset({Role.WORKER}),
    "results_of": frozenset({Role.WORKER}),
    "members_of": frozenset(Role),
    "cancel_jobs": frozenset({Role.WORKER, Role.ADMIN}),
    "cancel_dependants": frozenset({Role.WORKER, Role.ADMIN}),
    "cancel_waiting": frozenset({Role.WORKER, Role.ADMIN}),
    "restore_dependants": frozenset({Role.WORKER, Role.ADMIN}),
    "record_action": frozenset({Role.WORKER, Role.ADMIN}),
    # Triggers of `ended`, which need no right to be called.
    **dict.fromkeys(
        ("count_added_groups", "count_removed_groups", "count_changed_groups", "forget_groups"), frozenset()
    ),
    **dict.fromkeys(
        (
            "hold_members",
            # Enqueueing inside a caller's transaction, and what that is made of.
            "enqueue",
            "store_jobs",
            "announcement",
            "channel",
            "new_id",
            "refuse",
            "checked_name",
            "checked_integer",
            "checked_seconds",
            "checked_instant",
            "checked_tags",
            "checked_meta",
            "checked_failure_task",
            "checked_job",
            "checked_payload",
        ),
        frozenset({Role.PRODUCER, Role.WORKER}),
    ),
}

TABLES: dict[str, dict[Role, tuple[str, ...]]] = {
    table: {role: tuple(_RIGHTS[letter] for letter in letters) for role, letters in roles.items()}
    for table, roles in _TABLES.items()
}


# -- granting ------------------------------------------------------------------------------------


def grants(schema: str, names: Mapping[Role, Sequence[str]]) -> list[str]:
    """The statements that give these database roles exactly what they need, for the schema's owner to run.

    A name may stand under several roles, and then has the rights of all of them. Whatever else it had in the
    schema is taken from it first, so that running them again after an upgrade is always right.
    """
    where = sql.quoted(schema)
    every_name = dict.fromkeys(name for given in names.values() for name in given)
    statements: list[str] = []
    for name in every_name:
        role = quoted_role(name)
        statements += [
            f"REVOKE ALL ON ALL TABLES IN SCHEMA {where} FROM {role}",
            f"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {where} FROM {role}",
            f"REVOKE ALL ON SCHEMA {where} FROM {role}",
            f"GRANT USAGE ON SCHEMA {where} TO {role}",
        ]
    for kind in Role:
        for name in dict.fromkeys(names.get(kind, ())):
            statements += _grants_of(where, kind, quoted_role(name))
    return statements


def _grants_of(where: str, kind: Role, role: str) -> list[str]:
    by_rights: dict[tuple[str, ...], list[str]] = {}
    for table, rights in TABLES.items():
        if rights[kind]:
            by_rights.setdefault(rights[kind], []).append(f"{where}.{table}")
    statements = [
        f"GRANT {', '.join(rights)} ON {', '.join(tables)} TO {role}" for rights, tables in by_rights.items()
    ]
    functions = [f"{where}.{function}" for function, kinds in FUNCTIONS.items() if kind in kinds]
    return (
        [*statements, f"GRANT EXECUTE ON FUNCTION {', '.join(functions)} TO {role}"]
        if functions
        else statements
    )


def quoted_role(name: str) -> str:
    """A database role's name as an SQL identifier, whatever it holds."""
    size = len(name.encode(errors="replace"))
    if not 0 < size <= ROLE_NAME_BYTES_MAX or re.search("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", name):
        raise ConfigurationError(
            f"a database role's name is a text of 1 to {ROLE_NAME_BYTES_MAX} bytes without control characters, "
            f"not {shorten(name)}"
        )
    return '"' + name.replace('"', '""') + '"'


# -- having --------------------------------------------------------------------------------------


class Rights(Struct, frozen=True):
    """What the connected user may do in the schema."""

    user: str
    exists: bool  # the schema
    usage: bool
    tables: dict[str, frozenset[str]]
    functions: frozenset[str]

    def missing(self, role: Role) -> list[str]:
        """What this user lacks of the role's rights on what the schema holds, in words."""
        lacking = [] if self.usage else ["USAGE on the schema"]
        for table, rights in TABLES.items():
            found = [
                right for right in rights[role] if table in self.tables and right not in self.tables[table]
            ]
            if found:
                lacking.append(f"{', '.join(found)} on {table}")
        lacking += [
            f"EXECUTE on {function}()"
            for function, roles in FUNCTIONS.items()
            if role in roles and function not in self.functions
        ]
        return lacking


async def rights_of_user(session: Session, schema: str) -> Rights:
    user = await session.row("user_rights", schema)
    assert user is not None
    tables = {row["name"]: frozenset(row["rights"]) for row in await session.rows("table_rights", schema)}
    functions = frozenset(row["name"] for row in await session.rows("function_rights", schema))
    return Rights(user["name"], user["exists"], user["usage"], tables, functions)


async def ensure_worker(session: Session, dsn: str, schema: str) -> None:
    """Refuse to begin what could not be ended: one error now, rather than a warning at every settle."""
    rights = await rights_of_user(session, schema)
    missing = rights.missing(Role.WORKER)
    if missing:
        raise AccessDenied(
            f"the user {rights.user} cannot run a worker on {address_of(dsn)}: in the schema {schema} it lacks "
            f"{'; '.join(missing)}. {REMEDY}"
        )


# -- lacking -------------------------------------------------------------------------------------

_DENIED = re.compile(r"permission denied for (table|view|function) (\w+)")
REMEDY = (
    "`taskharbor roles` prints the GRANTs of a producer, a worker or an admin, for the schema's owner to run, again "
    "after every upgrade"
)


async def explained_denial(session: Session, dsn: str, schema: str, error: BaseException) -> AccessDenied:
    """Which right the server missed: it names the object, and not the right."""
    rights = await rights_of_user(session, schema)
    where = f"the schema {schema} of {address_of(dsn)}"
    denied = _DENIED.search(text_of(error))
    kind, name = (denied[1], denied[2]) if denied else ("", "")
    if not rights.usage:
        return AccessDenied(f"the user {rights.user} lacks USAGE on {where}. {REMEDY}")
    role = _nearest(kind, name, rights)
    if role is None:
        return access_denied(error, dsn, schema)
    lacking = _lacking(kind, name, role, rights)
    having = [_a(each) for each in Role if not set(lacking) - set(_needed(kind, name, each))]
    return AccessDenied(
        f"the user {rights.user} lacks {', '.join(lacking)} on the {kind} {name} in {where}, which "
        f"{' and '.join(having)} {'has' if len(having) == 1 else 'have'}. {REMEDY}"
    )


def _nearest(kind: str, name: str, rights: Rights) -> Role | None:
    """The role that could have done this, and that the user is short of the least."""
    able = [role for role in Role if _lacking(kind, name, role, rights)]
    return min(able, key=lambda role: len(rights.missing(role)), default=None)


def _lacking(kind: str, name: str, role: Role, rights: Rights) -> list[str]:
    if kind == "function":
        has = frozenset({"EXECUTE"}) if name in rights.functions else frozenset()
    else:
        has = rights.tables.get(name, frozenset())
    return [right for right in _needed(kind, name, role) if right not in has]


def _needed(kind: str, name: str, role: Role) -> tuple[str, ...]:
    if kind == "function":
        return ("EXECUTE",) if role in FUNCTIONS.get(name, ()) else ()
    return TABLES[name][role] if name in TABLES else ()


def _a(role: Role) -> str:
    return f"an {role}" if role is Role.ADMIN else f"a {role}"
