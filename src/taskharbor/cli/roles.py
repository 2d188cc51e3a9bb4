"""`taskharbor roles`"""

from __future__ import annotations

import click

from taskharbor.cli.session import Session, with_session


@click.command
@click.option(
    "--producer", "producers", metavar="ROLE", multiple=True, help="May enqueue, and look at its jobs."
)
@click.option("--worker", "workers", metavar="ROLE", multiple=True, help="May do all that a worker does.")
@click.option("--admin", "admins", metavar="ROLE", multiple=True, help="May do what operators do.")
@with_session
def roles(
    session: Session, producers: tuple[str, ...], workers: tuple[str, ...], admins: tuple[str, ...]
) -> None:
    """Print the GRANTs for database roles on PostgreSQL.

    Each ROLE gets what it needs in TaskHarbor's schema and no more; whatever else it had there is
    revoked. Nothing is executed: the schema's owner runs what is printed, and runs it again after
    an upgrade. The roles themselves have to exist. A ROLE may be given as several, and each option
    several times.

    \b
    Example:
      taskharbor roles --producer web --worker jobs --url postgresql://owner@host/db > grants.sql
      psql postgresql://owner@host/db -f grants.sql
    """
    if not (producers or workers or admins):
        raise click.UsageError("give the database's roles: --producer ROLE, --worker ROLE, --admin ROLE")
    schema = _schema_of(session)
    from taskharbor.drivers.postgres.roles import Role, grants

    names = {Role.PRODUCER: producers, Role.WORKER: workers, Role.ADMIN: admins}
    statements = grants(schema, names)
    if session.screen.as_json:
        session.screen.document({"schema": schema, "statements": statements})
    else:
        click.echo("\n".join(["BEGIN;", *(f"{statement};" for statement in statements), "COMMIT;"]))


def _schema_of(session: Session) -> str:
    """The schema that the URL names; the server is not asked for anything."""
    driver = session.open(create=True).driver
    schema = getattr(driver, "schema", None)
    if not isinstance(schema, str):
        raise click.ClickException(
            "only a store in PostgreSQL has roles; name it with --url postgresql://user@host/database"
        )
    return schema
