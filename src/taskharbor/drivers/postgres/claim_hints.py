"""Where the next claim begins to look, while the search for it is a far one.

Claims delete rows. Until the server vacuums, their entries stay in the index, and a search for the first live row walks
past every one. A claim that has walked far leaves a trail (see the function `claim_on_trail` in
`migrations/0016_initial/4_claim.sql`); the next ones follow it, and search the whole of the queues every now and then
for what lies beside it: a job that was handed back to its old place, one whose transaction committed late, a queue or a
priority that was not there before.

The function counts the dead entries that a search looks at, and leaves a trail if there are many. Once no transaction
can see a row any more, the first search that meets its entry marks it, and later ones pass it without counting it. They
still read its page. So the pages are counted here, without those that lookups and counted entries explain, and a claim
after one that read many asks for a trail.
"""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskharbor.clock import MICROS_PER_SECOND, Clock, from_micros
from taskharbor.drivers.base import Claim, Claimed, ClaimRequest

FAR = 20_000  # dead entries of the index that a search walks past: some ten milliseconds
FAR_PAGES = 1_000  # of the index that a search reads for nothing but marked entries: up to some milliseconds
LOOKUP_PAGES = 5  # that one lookup in the index reads to come to its first entry, and rather less
ENTRIES_ON_A_PAGE = 50  # and rather more
# Microseconds that a transaction may last after it has enqueued, and its jobs lie on the trail.
LATE = 250_000
SEARCH_SECONDS_MIN = 1.0  # from one search to the next
SEARCH_SECONDS_MAX = 60.0
SEARCH_SHARE = 10  # a search takes a tenth of the time, at most
TRAILS_MAX = 100  # a process has one for each set of queues that its workers serve
LANES_MAX = 100  # that are remembered while there is no trail


class HintLane(Struct, frozen=True):
    """A part of a trail: the jobs of one queue and priority."""

    queue: str
    rank: int  # the negated priority
    from_at: datetime  # nothing is before it


class SearchPlan(Struct, frozen=True):
    """How a claim looks for jobs."""

    trail: str | None = None  # as the last claim gave it
    search: bool = True  # everywhere, not only on the trail
    many: bool = False  # there are probably many jobs to take at once: see `take_unlocked` in the same file
    begins_trail: bool = False  # whatever it walks past


class SearchReport(Struct, frozen=True):
    """What a claim tells the next one."""

    trail: str | None  # None: the search was not far
    searched: int  # microseconds
    many: bool = False
    pages: int = 0  # of the index that it read
    lookups: int = 0  # in the index
    entries: int = 0  # that these gave, alive or dead, but not marked as dead

    @property
    def is_past_many_marked(self) -> bool:
        """Whether it read many pages for entries that it could not count."""
        explained = LOOKUP_PAGES * self.lookups + self.entries // ENTRIES_ON_A_PAGE
        return self.pages - explained >= FAR_PAGES


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[HintLane]).decode


class _Trail(Struct):
    trail: str
    searched: float  # seconds that the last search took
    search_at: float  # when the next one is due


class ClaimHints:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._trails: dict[tuple[str, ...] | None, _Trail] = {}
        self._lanes: dict[tuple[str, int], None] = {}  # where jobs were found: the latest last
        self._many: set[tuple[str, ...] | None] = set()  # the queues whose last claim had many plain jobs
        # The queues whose last search passed many marked entries.
        self._paged: set[tuple[str, ...] | None] = set()

    def look(self, request: ClaimRequest) -> SearchPlan:
        if not _looks(request):
            return SearchPlan()
        many, paged = request.queues in self._many, request.queues in self._paged
        known = self._trails.get(request.queues)
        if known is None:
            return SearchPlan(many=many, begins_trail=paged)
        now = self._clock.monotonic()
        if now < known.search_at:
            return SearchPlan(known.trail, search=False, many=many)
        # Should it take longer than its answer is waited for, the trail is followed before it is tried again.
        known.searched *= 2
        known.search_at = now + _pause_after(known.searched)
        return SearchPlan(known.trail, many=many, begins_trail=paged)

    def learn(
        self, request: ClaimRequest, look: SearchPlan, claim: Claim, seen: SearchReport | None
    ) -> Claim:
        """Remember where this claim has been, and say what it has not looked at."""
        if seen is None or not _looks(request):
            return claim
        if not seen.many:
            self._many.discard(request.queues)
        elif len(self._many) < TRAILS_MAX:
            self._many.add(request.queues)
        if claim.jobs:
            self._remember(claim.jobs[0])
            self._remember(claim.jobs[-1])
        trail = seen.trail
        if look.search:
            self._paged.discard(request.queues)
            if seen.is_past_many_marked:
                if len(self._paged) < TRAILS_MAX:
                    self._paged.add(request.queues)
            elif look.begins_trail:
                trail = None  # it is near again
        if trail is not None and look.trail is None:
            trail = self._begun(trail, request, claim.now)
        if trail is None:
            self._trails.pop(request.queues, None)
            return claim
        now = self._clock.monotonic()
        known = self._trails.get(request.queues)
        if look.search or known is None:
            searched = seen.searched / MICROS_PER_SECOND
            if known is None and len(self._trails) >= TRAILS_MAX:
                self._trails.clear()
            known = _Trail(trail, searched, now + _pause_after(searched))
            self._trails[request.queues] = known
        known.trail = trail
        if look.search or claim.more or len(claim.jobs) >= request.limit:
            return claim
        search_due = claim.now + max(0, round((known.search_at - now) * MICROS_PER_SECOND))
        next_due = search_due if claim.next_due is None else min(claim.next_due, search_due)
        return replace(claim, next_due=next_due, searched=False)

    def _remember(self, job: Claimed) -> None:
        lane = (job.queue, -job.priority)
        self._lanes.pop(lane, None)
        self._lanes[lane] = None
        if len(self._lanes) > LANES_MAX:
            oldest, *_ = list(self._lanes)
            self._lanes.pop(oldest, None)  # another thread may do the same

    def _begun(self, trail: str, request: ClaimRequest, now: int) -> str | None:
        """The trail of a first search, with the lanes that it found empty: that is where the next jobs will come."""
        lanes = {(lane.queue, lane.rank): lane for lane in _decode(trail)}
        for queue, rank in list(self._lanes):
            if request.queues is None or queue in request.queues:
                lanes.setdefault((queue, rank), HintLane(queue, rank, from_micros(now - LATE)))
        return _encode(list(lanes.values())).decode() if lanes else None


def _looks(request: ClaimRequest) -> bool:
    """The suspects' place is small, and who asks for no jobs asks for a lease that exists.

    A trail names no places aside: a claim that looks there searches.
    """
    return not request.suspects and request.limit > 0 and not request.aside


def _pause_after(searched: float) -> float:
    """Seconds from the end of a search to the next one, by how long it took."""
    return min(max(SEARCH_SECONDS_MIN, SEARCH_SHARE * searched), SEARCH_SECONDS_MAX)
