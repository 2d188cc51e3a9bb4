"""Tending blocked lines: what waits there joins the backlogs of the store, and begins when they have ended."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from taskharbor.drivers.contract.handing_over import HandOverAnswer, NotOwner
from taskharbor.streams.first import First
from taskharbor.streams.jobs import Held
from taskharbor.streams.lines import BLOCKED_MAX
from taskharbor.streams.parts import Parts

APPEND_AT_ONCE = 500
PAUSE_SECONDS = 0.02  # between two rounds; twice as long after each that found nothing to do
PAUSE_SECONDS_MAX = 0.32
LOOK_SECONDS = 1.0  # between two looks at which backlogs have ended, where messages join them


class Tending:
    def __init__(
        self, parts: Parts, *, begin: Callable[[Held], None], disown: Callable[[NotOwner], None]
    ) -> None:
        self._taken, self._lines, self._handing, self._jobs, self._clock = parts
        self._begin = begin
        self._disown = disown
        self._look_at = 0.0

    async def run(self) -> None:
        """Tend the lines for as long as the worker runs."""
        pause = PAUSE_SECONDS
        while True:
            is_busy = bool(self._lines.blocked) and await self._round()
            pause = PAUSE_SECONDS if is_busy else min(2 * pause, PAUSE_SECONDS_MAX)
            await self._clock.sleep(pause)

    async def _round(self) -> bool:
        """Whether there was anything to do."""
        released = await self._handing.advance()
        try:
            appended = await self._append()
        except NotOwner as error:
            self._disown(error)
            return True
        ended = False
        if self._lines.waits_here or released or self._clock.monotonic() >= self._look_at:
            self._look_at = self._clock.monotonic() + LOOK_SECONDS
            ended = await self._look()
        return bool(released) or appended or ended

    async def _append(self) -> bool:
        """Add messages to the backlogs of their lines. Those whose backlog has ended begin here."""
        waiting = self._lines.to_append(APPEND_AT_ONCE)
        if not waiting:
            return False
        batch = []
        for held in waiting:
            place = self._lines.place_of(held, opens=False)
            handed = replace(self._jobs.unattempted(held), backlog=place)
            batch.append(First(held.place, handed, held.size, held=held))
        answers = await self._handing.each(batch)
        for held, answer in zip(waiting, answers, strict=True):
            if answer is HandOverAnswer.NO_BACKLOG:
                if self._lines.is_next(held):  # its partition may have gone and come again meanwhile
                    self._unblock(held.line or "")
            else:
                self._lines.appended(held)
                self._taken.finish([held.place])
        return True

    async def _look(self) -> bool:
        """Unblock the lines whose backlogs have ended."""
        ended = False
        for partition, lines in self._lines.blocked_partitions().items():
            found = await self._handing.backlogs_between(*self._lines.span_of(partition), BLOCKED_MAX + 1)
            for key in self._lines.ended(lines, found):
                self._unblock(key)
                ended = True
        return ended

    def _unblock(self, key: str) -> None:
        held = self._lines.unblock(key)
        if held is not None:
            self._begin(held)
