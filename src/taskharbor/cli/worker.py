"""`taskharbor worker`"""

from __future__ import annotations

import logging
import os
from typing import Any, Literal

import click

from taskharbor.cli.parameters import duration
from taskharbor.cli.session import Session, with_session
from taskharbor.errors import StubbornHandler

logger = logging.getLogger("taskharbor.cli")

LEVELS = ("debug", "info", "warning", "error")
EXIT_STUBBORN = 75  # "try again later", as sysexits.h says: whoever started the worker should start it again


class GivenUp(click.ClickException):
    exit_code = EXIT_STUBBORN


@click.command
@click.option("--queues", metavar="A,B", help="Serve only these queues.  [default: all]")
@click.option(
    "--concurrency", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Jobs at once."
)
@click.option(
    "--lease-seconds",
    type=duration,
    default="30",
    show_default=True,
    help="How long a worker that has vanished keeps its jobs.",
)
@click.option(
    "--grace-seconds",
    type=duration,
    default="30",
    show_default=True,
    help="How long running jobs may take to end at a shutdown.",
)
@click.option(
    "--stubborn-seconds",
    type=duration,
    metavar="SECONDS",
    help="End, with status 75, when a handler in a thread has not ended so long after its timeout "
    "or its cancellation.  [default: never]",
)
@click.option(
    "--handler-max-jobs",
    type=click.IntRange(1),
    metavar="N",
    help='Replace a process of isolation="process" handlers after N jobs.  [default: never]',
)
@click.option(
    "--http-allow",
    multiple=True,
    metavar="HOST[:PORT]",
    help="Open an address to HTTP jobs; may be given several times.  [env var: TASKHARBOR_HTTP_ALLOW]",
)
@click.option("--drain", is_flag=True, help="Exit once nothing is runnable.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="How log lines look, on standard error.  [default: text]",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@with_session
def worker(
    session: Session,
    queues: str | None,
    concurrency: int,
    lease_seconds: float,
    grace_seconds: float,
    stubborn_seconds: float | None,
    handler_max_jobs: int | None,
    http_allow: tuple[str, ...],
    drain: bool,
    log_format: Literal["text", "json"] | None,
    log_level: str,
) -> None:
    """Execute jobs.

    SIGTERM or SIGINT (Ctrl-C) lets running jobs finish and then ends it; a second one ends it at once.
    Without an application only the built-in tasks are known: http, echo, sleep and fail. With --json, log
    lines are JSON, and the store's counts are printed at the end.

    \b
    Examples:
      taskharbor worker -A app:harbor --queues mail,default --concurrency 50
      taskharbor worker -A app:harbor --drain
    """
    from taskharbor.telemetry import logs

    logs.configure(log_format or ("json" if session.screen.as_json else "text"), log_level)
    open_to_http_jobs(http_allow)
    with session.open(create=True) as harbor:
        from taskharbor.worker import Worker

        if session.app is None:
            _offer_builtin(harbor)
        works = Worker(
            harbor,
            queues=None if queues is None else [name.strip() for name in queues.split(",")],
            concurrency=concurrency,
            lease_seconds=lease_seconds,
            grace_seconds=grace_seconds,
            stubborn_seconds=stubborn_seconds,
            handler_max_jobs=handler_max_jobs,
        )
        try:
            if drain:
                works.drain_sync()
            else:
                works.run_sync()
        except StubbornHandler as error:
            raise GivenUp(str(error)) from error
        if session.screen.as_json:
            session.screen.document({"worker": works.name, "counts": harbor.jobs.counts()})


def open_to_http_jobs(entries: tuple[str, ...]) -> None:
    """Name addresses where the application's Harbor and processes started from here find them: in the environment."""
    if entries:
        from taskharbor.http.addresses import ALLOW_VARIABLE, allow_list

        allow_list(entries)  # a wrong one is told at once
        named = [entry for entry in os.environ.get(ALLOW_VARIABLE, "").split(",") if entry.strip()]
        os.environ[ALLOW_VARIABLE] = ",".join([*named, *entries])


def _offer_builtin(harbor: Any) -> None:
    from taskharbor import builtin
    from taskharbor.telemetry.logs import masked_url

    builtin.register(harbor)
    logger.info(
        "no application was named (-A module:object): only the built-in tasks are known",
        extra={"fields": {"tasks": ",".join(builtin.NAMES), "store": masked_url(harbor.url)}},
    )
