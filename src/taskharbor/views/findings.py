"""What `doctor` finds: the store's own checks, and the difference of the clocks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.errors import StoreError

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.drivers.base import Check

CLOCK_DIFFERENCE_MAX_SECONDS = 5.0


class Finding(NamedTuple):
    name: str
    status: str  # ok, warning or failed
    detail: str


async def examine(harbor: Harbor) -> list[Finding]:
    """The driver's own checks, and the difference of the clocks."""
    try:
        checks = await harbor.driver.check()
        clock = await _clock(harbor)
    except StoreError as error:
        return [Finding("reachable", "failed", str(error))]
    return [Finding(check.name, _status(check), check.detail) for check in checks] + [clock]


def _status(check: Check) -> str:
    if check.ok:
        return "ok"
    return "failed" if check.severe else "warning"


async def _clock(harbor: Harbor) -> Finding:
    """The store's clock decides; one that is far from ours makes run_at and expires_at mean something else."""
    before = time.time()
    store = await harbor.driver.now() / MICROS_PER_SECOND
    after = time.time()
    # Anywhere between the two is as good as equal: the store was asked somewhere in between.
    difference = max(before - store, store - after, 0.0)
    status = "ok" if difference <= CLOCK_DIFFERENCE_MAX_SECONDS else "failed"
    way = "" if difference == 0 else " ahead" if store > after else " behind"
    return Finding(
        "clock", status, f"{difference:.3f} s{way} of this machine's" if way else "as this machine's"
    )
