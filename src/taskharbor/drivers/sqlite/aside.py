"""Places aside: their lanes in the order, the jobs that wait in them, and the holds that keep them closed."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice

from taskharbor.drivers.base import ClaimRequest
from taskharbor.drivers.contract.audit import Action
from taskharbor.drivers.contract.holds import LABELS_MAX, HoldKind, HoldRecord
from taskharbor.drivers.sqlite import audit
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.drivers.stored import Reading, is_text
from taskharbor.rules.aside import SEPARATOR, hold_label, label_of, lane_of

ASIDE = statements("aside")
OPERATE = statements("operate")
_AFTER_SEPARATOR = SEPARATOR[0] + chr(ord(SEPARATOR[1]) + 1)  # after every label
HOLD_KINDS = {str(kind): kind for kind in HoldKind}


# -- lanes -----------------------------------------------------------------------------------------


def lanes_of(session: Session, queues: Iterable[str]) -> Iterator[str]:
    """The lanes aside of these queues that have a job."""
    for queue in queues:
        for suspect in (0, 1):
            row = session.one(ASIDE["next_lane"], (suspect, queue + SEPARATOR, queue + _AFTER_SEPARATOR))
            while row is not None and type(row[0]) is str and is_text(row[0]):
                yield row[0]
                row = session.one(ASIDE["next_lane"], (suspect, row[0], queue + _AFTER_SEPARATOR))


def labels_of(lanes: Iterable[str], holds: AbstractSet[str]) -> tuple[str, ...]:
    """The labels of these lanes, for the answer of a claim."""
    labels = {label for lane in lanes if (label := label_of(lane)) is not None and label not in holds}
    return tuple(sorted(labels)[:LABELS_MAX])


def open_lanes(queues: Sequence[str], labels: Iterable[str | None], holds: AbstractSet[str]) -> list[str]:
    """The lanes of these labels in these queues, without those of a hold."""
    asked = [label for label in dict.fromkeys(labels) if label not in holds]
    return [lane_of(queue, label) for label in asked for queue in queues]


def recall(session: Session, request: ClaimRequest, lanes: Sequence[str]) -> None:
    """Make jobs due that wait in these lanes: their delay was for the workers that do not know them."""
    suspect, limit = int(request.suspects), max(request.limit, 0)
    lines = (_ahead(session, suspect, lane, limit) for lane in lanes)
    for rank, run_at, job_id, lane in islice(heapq.merge(*lines), limit):
        session.execute(ASIDE["make_due"], (session.now, suspect, lane, rank, run_at, job_id))
        session.execute(OPERATE["move_latest_attempt"], (job_id, session.now, label_of(lane)))


def _ahead(session: Session, suspect: int, lane: str, limit: int) -> Iterator[tuple[int, int, str, str]]:
    rows = session.execute(ASIDE["ahead"], (suspect, lane, session.now, limit)).fetchall()
    for rank, run_at, job_id in rows:
        if (type(rank), type(run_at), type(job_id)) == (int, int, str):
            yield rank, run_at, job_id, lane


# -- holds -----------------------------------------------------------------------------------------


def hold(session: Session, kind: HoldKind, name: str, action: Action | None) -> bool:
    by = None if action is None else action.actor
    done = session.execute(ASIDE["hold"], (kind, name, session.now, by)).rowcount > 0
    if done and action is not None:
        audit.record(session, action, 0)
    return done


def release(session: Session, kind: HoldKind, name: str, action: Action | None) -> bool:
    done = session.execute(ASIDE["release"], (kind, name)).rowcount > 0
    if done and action is not None:
        audit.record(session, action, 0)
    return done


def holds(session: Session) -> list[HoldRecord]:
    read = Reading()
    return [
        HoldRecord(
            HOLD_KINDS[kind],
            read.text("name", name),
            read.instant("since", since),
            read.optional_text("held_by", by),
        )
        for kind, name, since, by in session.execute(ASIDE["holds"]).fetchall()
        if kind in HOLD_KINDS
    ]


def hold_labels(session: Session) -> frozenset[str]:
    rows = session.execute(ASIDE["holds"]).fetchall()
    return frozenset(hold_label(kind, name) for kind, name, _, _ in rows) if rows else frozenset()
