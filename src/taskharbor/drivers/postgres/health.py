"""What `taskharbor doctor` wants to know about a PostgreSQL server and the schema in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskharbor.codec import agreeing, counted
from taskharbor.drivers.base import Check
from taskharbor.drivers.postgres.address import address_of
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.postgres.roles import REMEDY, Rights, Role, rights_of_user
from taskharbor.drivers.postgres.schema import first_version, latest_version, version_of
from taskharbor.drivers.stored import unreadable_check

OLDEST_SERVER = 130_000
DEAD_ROWS_MAX = 500_000
OLD_TRANSACTION_SECONDS = 300.0
CONNECTIONS_SHARE_MAX = 0.9

# A setting as the server tells it, by its name.
Settings = Mapping[str, Any]


async def checks(session: Session, dsn: str, schema: str) -> list[Check]:
    settings = await _row(session, "settings")
    rights = await rights_of_user(session, schema)
    found = [
        Check("reachable", True, address_of(dsn)),
        server(settings),
        primary(settings),
        durability(settings),
        replication(settings),
        connections(settings),
    ]
    if not rights.usage and rights.exists:
        return [*found, user_rights(rights)]
    version, serves = await version_of(session)
    found.append(schema_version(schema, version, serves))
    if not version:
        return found
    health = await _row(session, "health", schema)
    return [
        *found,
        user_rights(rights),
        transactions(health),
        dead_rows(health, settings),
        unreadable_check(health["unreadable"]),
        depth(health),
    ]


async def _row(session: Session, name: str, *arguments: object) -> Settings:
    row = await session.row(name, *arguments)
    assert row is not None
    return dict(row)


def schema_version(schema: str, version: int, serves: int) -> Check:
    detail = f"{schema} has version {version} of {latest_version()}"
    if version > latest_version() >= serves:
        return Check("schema", True, f"{detail}: newer, and it still serves this version of TaskHarbor")
    if version > latest_version():
        return Check("schema", False, f"{detail}, which it serves no more: upgrade TaskHarbor")
    if 0 < version < first_version():
        return Check(
            "schema", False, f"{detail}, of a checkout from before the first release: use a new database"
        )
    if version < latest_version():
        return Check("schema", False, f"{detail}: run `taskharbor migrate`")
    return Check("schema", True, detail)


def server(settings: Settings) -> Check:
    major = settings["version"] // 10_000
    return Check("server", settings["version"] >= OLDEST_SERVER, f"PostgreSQL {major}; 13 or newer is needed")


def primary(settings: Settings) -> Check:
    if settings["standby"]:
        return Check("primary", False, "a standby, which takes no writes: name the primary in the URL")
    return Check("primary", True, "takes writes")


def durability(settings: Settings) -> Check:
    names = ("fsync", "full_page_writes", "synchronous_commit")
    loose = [name for name in names if settings[name] == "off"]
    if loose:
        return Check(
            "durability",
            False,
            f"{', '.join(loose)} off: a crash may lose jobs that were accepted. Turn it on, in postgresql.conf or for "
            "this user (SHOW tells, pg_settings says where it was set)",
        )
    return Check(
        "durability", True, f"{', '.join(names[:2])} on, synchronous_commit {settings['synchronous_commit']}"
    )


def replication(settings: Settings) -> Check:
    """A failover to a replica that is behind takes back what was acknowledged."""
    replicas, names = settings["replicas"], settings["synchronous_standby_names"]
    if not replicas:
        return Check("replication", True, "no replica is connected")
    if names and settings["synchronous_commit"] not in ("off", "local"):
        return Check("replication", True, f"{replicas} connected; commits wait for {names}")
    return Check(
        "replication",
        False,
        f"{replicas} connected, and no commit waits for any: a failover may lose accepted jobs, and run others twice "
        "(synchronous_standby_names)",
        severe=False,
    )


def connections(settings: Settings) -> Check:
    """Each loop of a process may have up to eight: one that cannot connect takes the store for away."""
    used, places = settings["connections"], settings["max_connections"]
    if used <= places * CONNECTIONS_SHARE_MAX:
        return Check("connections", True, f"{used} of {places} are in use")
    return Check(
        "connections",
        False,
        f"{used} of {places} are in use, and the next client may be refused: end what is idle, raise "
        "max_connections, or put a pooler before the server",
        severe=False,
    )


def user_rights(rights: Rights) -> Check:
    fitting = [str(role) for role in Role if not rights.missing(role)]
    if not fitting:
        return Check("rights", False, f"{rights.user} has those of no role. {REMEDY}")
    return Check("rights", True, f"{rights.user} can be: {', '.join(fitting)}")


def transactions(health: Settings) -> Check:
    """Vacuum removes nothing that an open transaction might still look at, and claims wade through it."""
    seconds = health["oldest_seconds"] or 0.0
    hidden = health["hidden_sessions"]
    unseen = (
        f"; sessions that this user cannot see: {hidden} (GRANT pg_read_all_stats shows them)"
        if hidden
        else ""
    )
    if seconds <= OLD_TRANSACTION_SECONDS:
        return Check("transactions", True, f"the oldest has been open for {seconds:.0f} s{unseen}")
    return Check(
        "transactions",
        False,
        f"{health['oldest_whose']} has been open for {seconds:.0f} s: "
        f"vacuum waits for it, and claims slow down. End it, by its program or by {health['oldest_remedy']}{unseen}",
        severe=False,
    )


def dead_rows(health: Settings, settings: Settings) -> Check:
    dead = health["dead_rows"]
    if settings["autovacuum"] == "off":
        return Check(
            "dead rows",
            False,
            f"{dead:,} in the hot tables, and autovacuum is off: claims will slow down. Turn it on",
            severe=False,
        )
    if dead <= DEAD_ROWS_MAX:
        return Check("dead rows", True, f"{dead:,} in the hot tables")
    return Check(
        "dead rows",
        False,
        f"{dead:,} in the hot tables: autovacuum does not keep up, and claims slow down. If no old transaction is in "
        "its way, give it more to work with (autovacuum_vacuum_cost_limit, autovacuum_max_workers)",
        severe=False,
    )


def depth(health: Settings) -> Check:
    since = health["oldest_ready_seconds"]
    waiting = "" if since is None else f", the first one for {since:.0f} s"
    ready, scheduled = health["depth"], health["scheduled"]
    return Check(
        "depth",
        True,
        f"{counted(ready, 'job')} {agreeing(ready, 'is', 'are')} ready{waiting}; "
        f"{scheduled:,} {agreeing(scheduled, 'is', 'are')} scheduled",
    )
