"""`taskharbor worker`"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from taskharbor.cli.changes import POLICIES
from taskharbor.cli.entry import CommandFailed
from taskharbor.cli.parameters import duration, host_and_port
from taskharbor.cli.session import Session, with_session
from taskharbor.errors import StoreUnavailable, UnresponsiveHandler
from taskharbor.telemetry.logs import log_line

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.telemetry.metrics.serving import MetricsOptions
    from taskharbor.worker.supervisor.channel import WorkerConfig

logger = logging.getLogger("taskharbor.cli")

LEVELS = ("debug", "info", "warning", "error")


@click.command
@click.option(
    "--include",
    multiple=True,
    metavar="MODULE",
    help="Import a module that declares further tasks of the application; may be given several times.",
)
@click.option("--queues", metavar="A,B", help="Serve only these queues.  [default: all]")
@click.option(
    "--concurrency", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Jobs at once."
)
@click.option(
    "--lease-seconds",
    type=duration,
    default="30",
    show_default=True,
    help="How long a dead worker's jobs stay reserved for it.",
)
@click.option(
    "--grace-seconds",
    type=duration,
    default="7",
    show_default=True,
    help="How long running jobs may take to finish at a shutdown; the process exits two seconds later at the "
    "latest. Whatever stops it (docker stop: after 10 s) must wait for longer than both.",
)
@click.option(
    "--retry",
    type=click.Choice(POLICIES, case_sensitive=False),
    metavar="PRESET|none",
    help="The policy of jobs without one: "
    f"{', '.join(POLICIES[:-1])}; with none, the first failure is final.  [default: the application's]",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(0, 10_000),
    metavar="N",
    help="Limit the failures of a run, whatever the job asks for; 0 removes the limit.  [default: the policy's]",
)
@click.option(
    "--unresponsive-seconds",
    type=duration,
    metavar="SECONDS",
    help="Exit with status 75 when a handler in a thread still runs this long after its timeout "
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
    "--processes",
    type=click.IntRange(1, 1_000),
    help="Supervise this many worker processes, each with its own --concurrency.  [default: work in this one]",
)
@click.option(
    "--stuck-seconds",
    type=duration,
    help="Replace a process whose event loop is blocked for this long.  [default: 300; with --processes]",
)
@click.option(
    "--max-jobs",
    type=click.IntRange(min=1),
    help="Let a process finish and exit after it has begun this many jobs; with --processes it is replaced.",
)
@click.option(
    "--max-memory",
    type=click.IntRange(min=1),
    metavar="MIB",
    help="Let a process that uses more memory than this finish its jobs and exit; with --processes it is "
    "replaced.",
)
@click.option(
    "--default-gc",
    is_flag=True,
    help="Collect garbage as often as Python does by default, for handlers that leave large reference cycles.",
)
@click.option(
    "--health-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Touch this file every second while the worker is healthy, and remove it at the end.",
)
@click.option(
    "--health-port",
    metavar="[HOST:]PORT",
    type=host_and_port,
    help="Answer HTTP with 200 while the worker is healthy, else 503; on 127.0.0.1 unless a host is named.",
)
@click.option(
    "--metrics-port",
    metavar="[HOST:]PORT",
    type=host_and_port,
    help="Answer Prometheus at /metrics, without a token; on 127.0.0.1 unless a host is named.",
)
@click.option(
    "--metrics-prefix",
    metavar="TEXT",
    help='Begin the names of metrics with this; with "" they are bare.  [default: taskharbor_]',
)
@click.option(
    "--metrics-store",
    is_flag=True,
    help="Show the depth and age of queues, and all workers, among the metrics.",
)
@click.option(
    "--no-rollups", is_flag=True, help="Keep what this worker counts out of `taskharbor stats --series`."
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="How log lines look, on standard error.  [default: text]",
)
@click.option("--no-tracebacks", is_flag=True, help="Keep tracebacks of failed attempts out of the log.")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@with_session
def worker(
    session: Session,
    include: tuple[str, ...],
    queues: str | None,
    concurrency: int,
    lease_seconds: float,
    grace_seconds: float,
    retry: str | None,
    max_attempts: int | None,
    unresponsive_seconds: float | None,
    handler_max_jobs: int | None,
    http_allow: tuple[str, ...],
    drain: bool,
    processes: int | None,
    stuck_seconds: float | None,
    max_jobs: int | None,
    max_memory: int | None,
    default_gc: bool,
    health_file: Path | None,
    health_port: tuple[str, int] | None,
    metrics_port: tuple[str, int] | None,
    metrics_prefix: str | None,
    metrics_store: bool,
    no_rollups: bool,
    log_format: Literal["text", "json"] | None,
    no_tracebacks: bool,
    log_level: str,
) -> None:
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
    from taskharbor.telemetry import logs
    from taskharbor.worker.supervisor.channel import WorkerConfig

    if include and session.app is None:
        raise click.UsageError(
            "--include names modules of an application: name the application as well, with --app"
        )
    metrics = _metrics_options(metrics_port, metrics_prefix, metrics_store)
    session.include = include
    chosen = log_format or ("json" if session.screen.as_json else "text")
    logs.configure(chosen, log_level)
    open_to_http_jobs(http_allow)
    config = WorkerConfig(
        app=session.app,
        url=session.url,
        queues=None if queues is None else [name.strip() for name in queues.split(",")],
        concurrency=concurrency,
        lease_seconds=lease_seconds,
        grace_seconds=grace_seconds,
        log_format=chosen,
        log_level=log_level,
        drain=drain,
        max_jobs=max_jobs,
        max_memory_mib=max_memory,
        unresponsive_seconds=unresponsive_seconds,
        handler_max_jobs=handler_max_jobs,
        retry=retry,
        max_attempts=max_attempts,
        log_tracebacks=not no_tracebacks,
        include=list(include),
        default_gc=default_gc,
        metrics=metrics is not None,
        rollups=not no_rollups,
    )
    if processes is not None:
        from taskharbor.cli.supervise import supervise

        supervise(session.screen, config, processes, stuck_seconds, health_file, health_port, metrics)
        return
    if stuck_seconds is not None:
        raise click.UsageError("--stuck-seconds is for a supervisor: add --processes")
    work_here(session, config, health_file, health_port, metrics)


def _metrics_options(
    address: tuple[str, int] | None, prefix: str | None, store: bool
) -> MetricsOptions | None:
    if address is None:
        if prefix is not None or store:
            given = "--metrics-store" if prefix is None else "--metrics-prefix"
            raise click.UsageError(f"{given} says what --metrics-port shows: add --metrics-port")
        return None
    from taskharbor.telemetry.metrics.catalogue import PREFIX
    from taskharbor.telemetry.metrics.exposition import checked_prefix
    from taskharbor.telemetry.metrics.serving import MetricsOptions

    return MetricsOptions(*address, PREFIX if prefix is None else checked_prefix(prefix), store)


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
        from taskharbor.worker.supervisor.child_main import EXIT_REPLACE, worker_for
        from taskharbor.worker.supervisor.health import HealthReports, health_of, work_with_health_reports

        if session.app is None:
            offer_builtin(harbor)
        works = worker_for(harbor, config)
        try:
            work = works.drain if config.drain else works.run
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


def counts_of(harbor: Harbor) -> dict[str, int]:
    """Return the counts, or nothing if the store is unavailable: a worker that stops must not fail for that."""
    try:
        return {str(state): jobs for state, jobs in harbor.jobs.counts().items()}
    except StoreUnavailable:
        return {}


def open_to_http_jobs(entries: tuple[str, ...]) -> None:
    """Put addresses into the environment, where the application's Harbor and child processes find them."""
    if entries:
        from taskharbor.http.addresses import ALLOW_VARIABLE, allow_list

        allow_list(entries)  # refuses an invalid one at once
        named = [entry for entry in os.environ.get(ALLOW_VARIABLE, "").split(",") if entry.strip()]
        os.environ[ALLOW_VARIABLE] = ",".join([*named, *entries])


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
