"""`taskharbor worker`"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskharbor.cli.entry import CommandFailed
from taskharbor.cli.parameters import duration
from taskharbor.cli.session import Session, with_session
from taskharbor.cli.work_options import WorkOptions, work_options
from taskharbor.errors import StoreUnavailable, UnresponsiveHandler
from taskharbor.telemetry.logs import log_line

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.streams import StreamWorker
    from taskharbor.telemetry.metrics.serving import MetricsOptions
    from taskharbor.worker.supervisor.channel import WorkerConfig
    from taskharbor.worker.worker import Worker

logger = logging.getLogger("taskharbor.cli")


@click.command
@click.option("--queues", metavar="A,B", help="Serve only these queues.  [default: all]")
@click.option(
    "--lease-seconds",
    type=duration,
    default="30",
    show_default=True,
    help="How long a dead worker's jobs stay reserved for it.",
)
@click.option("--drain", is_flag=True, help="Exit once nothing is runnable.")
@work_options
@with_session
def worker(session: Session, /, queues: str | None, lease_seconds: float, drain: bool, **given: Any) -> None:
    """Execute jobs.

    SIGTERM or SIGINT (Ctrl-C) lets running jobs finish and then stops the worker; a second one stops it at once.
    Without an application, the worker knows only the built-in tasks: http, echo, sleep and fail. With --json, log
    lines are JSON, and the store's counts are printed at the end.

    With --processes a supervisor keeps that many worker processes running. It extends their leases, so that
    a handler that blocks its process does not lose its lease, and when a process dies, its jobs start again
    at once.

    \b
    Examples:
      taskharbor worker -A app:harbor --queues mail,default --concurrency 50
      taskharbor worker -A app:harbor --processes 4 --max-memory 512
      taskharbor worker -A app:harbor --drain
    """
    options = WorkOptions(**given)
    config = options.prepare(
        session,
        lease_seconds=lease_seconds,
        queues=None if queues is None else [name.strip() for name in queues.split(",")],
        drain=drain,
    )
    if options.processes is not None:
        options.supervise(session, config)
        return
    work_here(session, config, options.health_file, options.health_port, options.metrics())


def work_here(
    session: Session,
    config: WorkerConfig,
    health_file: Path | None,
    health_address: tuple[str, int] | None,
    metrics: MetricsOptions | None = None,
) -> None:
    """Work in this process."""
    # Before the application is imported: what the collector is set to then is Python's own.
    from taskharbor.worker.garbage import collecting_less_often

    with session.open(create=True) as harbor:
        from taskharbor.telemetry.metrics.serving import serving
        from taskharbor.telemetry.metrics.store_gauges import read_store
        from taskharbor.telemetry.metrics.totals import Totals
        from taskharbor.worker.signals import run_with_signals
        from taskharbor.worker.supervisor.child_main import EXIT_REPLACE
        from taskharbor.worker.supervisor.health import HealthReports, health_of, work_with_health_reports
        from taskharbor.worker.worker import Worker

        if session.app is None:
            offer_builtin(harbor)
        works = _worker_for(harbor, config)
        try:
            work = works.drain if isinstance(works, Worker) and config.drain else works.run
            reports = HealthReports(lambda: health_of(works), health_file, health_address)

            async def work_and_report() -> None:
                totals = works._totals() if works.metrics else Totals()
                async with serving(metrics, totals, lambda: read_store(harbor.driver)):
                    await work_with_health_reports(works, work, reports)

            with collecting_less_often(not config.default_gc):
                run_with_signals(work_and_report, works)
        except UnresponsiveHandler as error:
            raise CommandFailed(str(error), EXIT_REPLACE) from error
        if session.screen.as_json:
            session.screen.document({"worker": works.name, "counts": counts_of(harbor)})


def _worker_for(harbor: Harbor, config: WorkerConfig) -> Worker | StreamWorker:
    if config.stream is None:
        from taskharbor.worker.supervisor.child_main import worker_for

        return worker_for(harbor, config)
    from taskharbor.streams.supervised import stream_worker_for

    return stream_worker_for(harbor, config)


def counts_of(harbor: Harbor) -> dict[str, int]:
    """Return the counts, or nothing if the store is unavailable: a worker that stops must not fail for that."""
    try:
        return {str(state): jobs for state, jobs in harbor.jobs.counts().items()}
    except StoreUnavailable:
        return {}


def offer_builtin(harbor: Any) -> None:
    from taskharbor import builtin_tasks
    from taskharbor.telemetry.logs import masked_url

    builtin_tasks.register(harbor)
    log_line(
        logger,
        logging.INFO,
        "no application was named (-A module:object): only the built-in tasks are known",
        {"store": masked_url(harbor.url)},
    )
