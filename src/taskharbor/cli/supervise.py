"""`taskharbor worker --processes N`: runs the supervisor."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from taskharbor.cli.entry import CommandFailed
from taskharbor.cli.screen import Screen
from taskharbor.telemetry.metrics.serving import MetricsOptions
from taskharbor.worker.supervisor.channel import WorkerConfig
from taskharbor.worker.supervisor.parent import STUCK_SECONDS, GaveUp, Settings, Supervisor

# -P: not even the current folder is on the path of a child before it loads the application.
CHILD = (sys.executable, "-P", "-m", "taskharbor.cli.child")


def supervise(
    screen: Screen,
    config: WorkerConfig,
    processes: int,
    stuck_seconds: float | None,
    health_file: Path | None,
    health_address: tuple[str, int] | None,
    metrics: MetricsOptions | None = None,
) -> None:
    if sys.platform == "win32":
        raise click.UsageError(
            "--processes needs the sessions and signals of POSIX; leave it out on this system"
        )
    stuck = STUCK_SECONDS if stuck_seconds is None else stuck_seconds
    if stuck <= 0:
        raise click.UsageError("--stuck-seconds must be more than 0")
    settings = Settings(CHILD, processes, config, stuck, health_file, health_address, metrics)

    async def run() -> None:
        supervisor = Supervisor(settings)
        await supervisor.run()
        if screen.as_json:
            screen.document({"worker": supervisor.name, "counts": supervisor.counts})

    try:
        asyncio.run(run())
    except GaveUp as error:
        raise CommandFailed(str(error), error.code) from None
