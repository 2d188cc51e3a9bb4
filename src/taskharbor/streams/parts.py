"""The parts of a `StreamSource` that serve every step which hands messages over."""

from __future__ import annotations

from typing import NamedTuple

from taskharbor.clock import Clock
from taskharbor.streams.handing import Handing
from taskharbor.streams.jobs import MessageJobs
from taskharbor.streams.lines import Lines
from taskharbor.streams.taken import Taken


class Parts(NamedTuple):
    taken: Taken
    lines: Lines
    handing: Handing
    jobs: MessageJobs
    clock: Clock
