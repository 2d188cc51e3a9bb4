"""The options that `taskharbor worker` and `taskharbor stream` share: how handlers run, and what is shown of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from taskharbor.cli.changes import POLICIES
from taskharbor.cli.parameters import duration, host_and_port
from taskharbor.cli.session import Session

if TYPE_CHECKING:
    from taskharbor.telemetry.metrics.serving import MetricsOptions
    from taskharbor.worker.supervisor.channel import WorkerConfig

LEVELS = ("debug", "info", "warning", "error")

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--include",
        multiple=True,
        metavar="MODULE",
        help="Import a module that declares further tasks of the application; may be given several times.",
    ),
    click.option(
        "--concurrency", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Jobs at once."
    ),
    click.option(
        "--grace-seconds",
        type=duration,
        default="7",
        show_default=True,
        help="How long running jobs may take to finish at a shutdown; the process exits two seconds later at the "
        "latest. Whatever stops it (docker stop: after 10 s) must wait for longer than both.",
    ),
    click.option(
        "--retry",
        type=click.Choice(POLICIES, case_sensitive=False),
        metavar="PRESET|none",
        help="The policy of jobs without one: "
        f"{', '.join(POLICIES[:-1])}; with none, the first failure is final.  [default: the application's]",
    ),
    click.option(
        "--max-attempts",
        type=click.IntRange(0, 10_000),
        metavar="N",
        help="Limit the failures of a run, whatever the job asks for; 0 removes the limit.  [default: the policy's]",
    ),
    click.option(
        "--unresponsive-seconds",
        type=duration,
        metavar="SECONDS",
        help="Exit with status 75 when a handler in a thread still runs this long after its timeout "
        "or its cancellation.  [default: never]",
    ),
    click.option(
        "--handler-max-jobs",
        type=click.IntRange(1),
        metavar="N",
        help='Replace a process of isolation="process" handlers after N jobs.  [default: never]',
    ),
    click.option(
        "--http-allow",
        multiple=True,
        metavar="HOST[:PORT]",
        help="Open an address to HTTP jobs; may be given several times.  [env var: TASKHARBOR_HTTP_ALLOW]",
    ),
    click.option(
        "--processes",
        type=click.IntRange(1, 1_000),
        help="Supervise this many worker processes, each with its own --concurrency.  [default: work in this one]",
    ),
    click.option(
        "--stuck-seconds",
        type=duration,
        help="Replace a process whose event loop is blocked for this long.  [default: 300; with --processes]",
    ),
    click.option(
        "--max-jobs",
        type=click.IntRange(min=1),
        help="Let a process finish and exit after it has begun this many jobs; with --processes it is replaced.",
    ),
    click.option(
        "--max-memory",
        type=click.IntRange(min=1),
        metavar="MIB",
        help="Let a process that uses more memory than this finish its jobs and exit; with --processes it is "
        "replaced.",
    ),
    click.option(
        "--default-gc",
        is_flag=True,
        help="Collect garbage as often as Python does by default, for handlers that leave large reference cycles.",
    ),
    click.option(
        "--health-file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Touch this file every second while the worker is healthy, and remove it at the end.",
    ),
    click.option(
        "--health-port",
        metavar="[HOST:]PORT",
        type=host_and_port,
        help="Answer HTTP with 200 while the worker is healthy, else 503; on 127.0.0.1 unless a host is named.",
    ),
    click.option(
        "--metrics-port",
        metavar="[HOST:]PORT",
        type=host_and_port,
        help="Answer Prometheus at /metrics, without a token; on 127.0.0.1 unless a host is named.",
    ),
    click.option(
        "--metrics-prefix",
        metavar="TEXT",
        help='Begin the names of metrics with this; with "" they are bare.  [default: taskharbor_]',
    ),
    click.option(
        "--metrics-store",
        is_flag=True,
        help="Show the depth and age of queues, and all workers, among the metrics.",
    ),
    click.option(
        "--no-rollups", is_flag=True, help="Keep what this worker counts out of `taskharbor stats --series`."
    ),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        help="How log lines look, on standard error.  [default: text]",
    ),
    click.option("--no-tracebacks", is_flag=True, help="Keep tracebacks of failed attempts out of the log."),
    click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True),
)


def work_options(command: F) -> F:
    """Add the options to a command, which makes `WorkOptions` of them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


class WorkOptions(Struct):
    """What the options say."""

    include: tuple[str, ...]
    concurrency: int
    grace_seconds: float
    retry: str | None
    max_attempts: int | None
    unresponsive_seconds: float | None
    handler_max_jobs: int | None
    http_allow: tuple[str, ...]
    processes: int | None
    stuck_seconds: float | None
    max_jobs: int | None
    max_memory: int | None
    default_gc: bool
    health_file: Path | None
    health_port: tuple[str, int] | None
    metrics_port: tuple[str, int] | None
    metrics_prefix: str | None
    metrics_store: bool
    no_rollups: bool
    log_format: str | None
    no_tracebacks: bool
    log_level: str

    def prepare(self, session: Session, *, lease_seconds: float, **more: Any) -> WorkerConfig:
        """Check the options, set up the logs and the environment, and return how to work."""
        from taskharbor.telemetry import logs
        from taskharbor.worker.supervisor.channel import WorkerConfig

        if self.include and session.app is None:
            raise click.UsageError(
                "--include names modules of an application: name the application as well, with --app"
            )
        if self.stuck_seconds is not None and self.processes is None:
            raise click.UsageError("--stuck-seconds is for a supervisor: add --processes")
        metrics = self.metrics()
        session.include = self.include
        is_json = self.log_format == "json" or (self.log_format is None and session.screen.as_json)
        logs.configure("json" if is_json else "text", self.log_level)
        open_to_http_jobs(self.http_allow)
        return WorkerConfig(
            app=session.app,
            url=session.url,
            queues=more.pop("queues", None),
            concurrency=self.concurrency,
            lease_seconds=lease_seconds,
            grace_seconds=self.grace_seconds,
            log_format="json" if is_json else "text",
            log_level=self.log_level,
            max_jobs=self.max_jobs,
            max_memory_mib=self.max_memory,
            unresponsive_seconds=self.unresponsive_seconds,
            handler_max_jobs=self.handler_max_jobs,
            retry=self.retry,
            max_attempts=self.max_attempts,
            log_tracebacks=not self.no_tracebacks,
            include=list(self.include),
            default_gc=self.default_gc,
            metrics=metrics is not None,
            rollups=not self.no_rollups,
            **more,
        )

    def metrics(self) -> MetricsOptions | None:
        """Return where and how to answer Prometheus; None if that is not asked for."""
        if self.metrics_port is None:
            if self.metrics_prefix is not None or self.metrics_store:
                given = "--metrics-store" if self.metrics_prefix is None else "--metrics-prefix"
                raise click.UsageError(f"{given} says what --metrics-port shows: add --metrics-port")
            return None
        from taskharbor.telemetry.metrics.catalogue import PREFIX
        from taskharbor.telemetry.metrics.exposition import checked_prefix
        from taskharbor.telemetry.metrics.serving import MetricsOptions

        prefix = PREFIX if self.metrics_prefix is None else checked_prefix(self.metrics_prefix)
        return MetricsOptions(*self.metrics_port, prefix, self.metrics_store)

    def supervise(self, session: Session, config: WorkerConfig) -> None:
        """Run the supervisor of `--processes`."""
        from taskharbor.cli.supervise import supervise

        assert self.processes is not None, "only called with --processes"
        supervise(
            session.screen,
            config,
            self.processes,
            self.stuck_seconds,
            self.health_file,
            self.health_port,
            self.metrics(),
        )


def open_to_http_jobs(entries: tuple[str, ...]) -> None:
    """Put addresses into the environment, where the application's Harbor and child processes find them."""
    if entries:
        from taskharbor.http.addresses import ALLOW_VARIABLE, allow_list

        allow_list(entries)  # refuses an invalid one at once
        named = [entry for entry in os.environ.get(ALLOW_VARIABLE, "").split(",") if entry.strip()]
        os.environ[ALLOW_VARIABLE] = ",".join([*named, *entries])
