"""`taskharbor token …`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskharbor.cli.parameters import duration
from taskharbor.cli.session import Session, with_session
from taskharbor.views.documents import instant
from taskharbor.views.token_documents import NewToken, TokenDocument, TokenList

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.records import TokenRecord


@click.group(no_args_is_help=False)
def token() -> None:
    """Manage the tokens of the REST interface.

    \b
    Example:
      taskharbor token create deployment --role write
    """


@token.command("create")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["read", "write", "admin"]),
    required=True,
    help="read: look; write: also enqueue and change single jobs and schedules; admin: also stop queues and "
    "change many jobs at once.",
)
@click.option(
    "--expires-in", type=duration, help="Let it expire after this time, such as 30d.  [default: never]"
)
@with_session
def create(session: Session, name: str, role: str, expires_in: float | None) -> None:
    """Create a token for NAME and print it, only this once.

    \b
    Example:
      taskharbor token create dashboard --role read
    """
    from taskharbor.server.tokens import create_token

    async def work(harbor: Harbor) -> tuple[str, TokenRecord]:
        return await create_token(harbor.driver, name, role, expires_in)

    text, record = session.run(work, create=True)
    if session.screen.as_json:
        session.screen.document(NewToken.of(record, token=text))
    else:
        session.screen.line(text)


@token.command("list")
@with_session
def list_tokens(session: Session) -> None:
    """List the names and roles of tokens. The store does not keep the tokens themselves.

    \b
    Example:
      taskharbor token list
    """
    from taskharbor.drivers.typed_records import TOKENS

    records = session.run(lambda harbor: TOKENS.all(harbor.driver))
    if session.screen.as_json:
        session.screen.document(TokenList([TokenDocument.of(record) for record in records], None))
        return
    session.screen.table(
        ("ID", "NAME", "ROLE", "CREATED", "EXPIRES"),
        [(r.id, r.name, r.role, instant(r.created_at), instant(r.expires_at)) for r in records],
        empty="there is no token",
    )


@token.command("revoke")
@click.argument("token_id", metavar="ID")
@with_session
def revoke(session: Session, token_id: str) -> None:
    """Revoke the token ID (see `token list`); servers refuse it after about a second.

    \b
    Example:
      taskharbor token revoke 4f1c2a9b8d07
    """
    from taskharbor.server.tokens import revoke_token

    if not session.run(lambda harbor: revoke_token(harbor.driver, token_id)):
        raise click.ClickException(f"no token has the id {token_id}; `taskharbor token list` lists them")
    if session.screen.as_json:
        session.screen.document({"id": token_id, "revoked": True})
    else:
        session.screen.line(f"{token_id}: revoked")
