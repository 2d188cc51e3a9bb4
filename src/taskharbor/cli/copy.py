"""`taskharbor copy`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskharbor.cli.screen import Screen
from taskharbor.cli.session import Session
from taskharbor.codec import agreeing, counted

if TYPE_CHECKING:
    from taskharbor.copying import CopyReport


@click.command
@click.option(
    "--from", "source", required=True, metavar="URL", help="The store to copy, such as sqlite:///harbor.db."
)
@click.option(
    "--to",
    "target",
    required=True,
    metavar="URL",
    help="The store to copy into, such as postgresql://host/shop.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def copy(source: str, target: str, as_json: bool) -> None:
    """Copy everything that one store keeps into another.

    Jobs keep their ids, keys, attempt numbers, history and steps; schedules, workflows, tokens, holds and the
    audit come along. Stop all workers and producers first: it refuses to begin while a worker or a lease
    exists, and fails if the source changes meanwhile. An interrupted copy can be repeated, and skips what is
    equal. A target that has been used is refused before anything is written.

    \b
    Example:
      taskharbor copy --from sqlite:///harbor.db --to postgresql://localhost/shop
    """
    import asyncio

    from taskharbor.sync import fastest_loop

    screen = Screen(as_json=as_json)
    if source == target or _is_one_file(source, target):
        raise click.UsageError("--from and --to name the same store; name another one to copy into")
    with asyncio.Runner(loop_factory=fastest_loop) as runner:
        report = runner.run(_copy(source, target, screen))
    if as_json:
        kinds = {
            kind.kind: {"rows": kind.rows, "new": kind.new, "checksum": kind.checksum}
            for kind in report.kinds
        }
        screen.document({"rows": report.rows, "new": report.new, "kinds": kinds})
    else:
        screen.line(
            f"{counted(report.rows, 'row')} {agreeing(report.rows, 'is', 'are')} equal in both stores; "
            f"{report.new:,} of them {agreeing(report.new, 'is', 'are')} new. "
            "Now start the workers with the new store"
        )


def _is_one_file(source: str, target: str) -> bool:
    """Return whether both URLs name one SQLite file, by whatever path."""
    import os

    from taskharbor.drivers.registry import driver_for
    from taskharbor.drivers.sqlite import SQLiteDriver

    if not (source.startswith("sqlite:") and target.startswith("sqlite:")):
        return False
    origin, copied = driver_for(source), driver_for(target)
    if not (isinstance(origin, SQLiteDriver) and isinstance(copied, SQLiteDriver)):
        return False
    if os.path.realpath(origin.path) == os.path.realpath(copied.path):
        return True
    try:
        return os.path.samefile(origin.path, copied.path)  # a hard link
    except OSError:  # one of them does not exist yet
        return False


async def _copy(source: str, target: str, screen: Screen) -> CopyReport:
    from taskharbor.copying import copy_store

    seen = ""

    def show(kind: str, rows: int, new: int) -> None:
        nonlocal seen
        if screen.as_json or (kind == seen and rows % 100_000 >= 1_000):
            return
        seen = kind
        screen.line(f"{kind}: {rows:,} read, {new:,} new")

    async with (
        Session(None, source, screen).open() as origin,
        Session(None, target, screen).open(create=True) as copied,
    ):
        return await copy_store(origin.driver, copied.driver, show)
