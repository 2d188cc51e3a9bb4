"""Settling: which transactions a batch takes, and what follows from its answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from taskharbor.drivers.base import Note, SettleAnswer, SettleResult, Transition, settle_pieces
from taskharbor.drivers.postgres import leases, settle
from taskharbor.drivers.postgres.connections import TRANSACTION_BYTES, Lane
from taskharbor.drivers.postgres.explain import Contended
from taskharbor.drivers.postgres.opened_store import OpenedStore
from taskharbor.records import State
from taskharbor.rules.settling import proves_survival

FOLD_EVERY = 200  # settles of this process between two foldings of the tallies
FOLD_GROUPS_EVERY = 5_000  # deaths that it settles between two foldings of the groups


class Settler:
    """Settles and notes, and marks the leases whose workers a refusal proves to be alive."""

    def __init__(self, store: OpenedStore) -> None:
        self.covered = settle.Covered()
        self._store = store
        self._settles = 0
        self._deaths = 0

    async def settle(
        self, transitions: Sequence[Transition], now: int | None, shared_from: int
    ) -> list[SettleResult]:
        plain = settle.plain_successes(self.covered, transitions)
        if plain is not None:
            answers = await self._store.run(
                Lane.SETTLE,
                lambda s: settle.settle_plainly(s, transitions, plain, shared_from),
                now,
                prompt=True,
            )
            if answers is not None:
                return answers
        # Several transactions rather than one: no lease is locked while the whole of the batch is on its way.
        answers = []
        for some in settle_pieces(transitions, TRANSACTION_BYTES):
            answers += await self._settle_beside_producers(some, now)
        self._deaths += sum(settled.state is State.DEAD for settled in answers)
        return answers

    async def _settle_beside_producers(
        self, transitions: Sequence[Transition], now: int | None
    ) -> list[SettleResult]:
        """Settle a batch. A child with a key that an open transaction of a producer stores delays only its parent."""
        try:
            return await self.settle_together(transitions, now, settle.KEY_WAIT)
        except Contended:
            pass
        keyed = [i for i, t in enumerate(transitions) if settle.has_keyed_children(t)]
        others = sorted(set(range(len(transitions))) - set(keyed))
        settled = await self.settle_together([transitions[i] for i in others], now, settle.KEY_WAIT)
        answers = dict(zip(others, settled, strict=True))
        for i in keyed:
            try:
                [answers[i]] = await self.settle_together([transitions[i]], now, settle.KEY_WAIT_ALONE)
            except Contended:
                answers[i] = SettleResult(SettleAnswer.LATER)
        return [answers[i] for i in range(len(transitions))]

    async def settle_together(
        self, transitions: Sequence[Transition], now: int | None, key_wait: str
    ) -> list[SettleResult]:
        if not transitions:
            return []
        work = partial(settle.settle, transitions=transitions, key_wait=key_wait)
        answers = await self._store.transact(Lane.SETTLE, work, now, prompt=True)
        pairs = zip(transitions, answers, strict=True)
        alive = {t.token for t, settled in pairs if proves_survival(settled.answer, t.worker)}
        await self.mark_survived(alive, now)
        return answers

    async def fold_now_and_then(self) -> None:
        self._settles += 1
        if self._deaths >= FOLD_GROUPS_EVERY:
            self._deaths = 0
            await self._store.run(Lane.SETTLE, lambda s: s.do("fold_groups"), prompt=True)
        if self._settles % FOLD_EVERY == 0:
            await self.fold_tallies()

    async def fold_tallies(self) -> None:
        await self._store.run(Lane.SETTLE, lambda s: s.do("fold_tallies"), prompt=True)
        await self._store.run(Lane.SETTLE, lambda s: s.do("fold_groups"), prompt=True)

    async def note(self, notes: Sequence[Note], now: int | None) -> list[SettleAnswer]:
        answers = await self._store.transact(Lane.SETTLE, lambda s: settle.note(s, notes), now, prompt=True)
        alive = {n.token for n, answer in zip(notes, answers, strict=True) if proves_survival(answer)}
        await self.mark_survived(alive, now)
        return answers

    async def mark_survived(self, tokens: Iterable[str], now: int | None) -> None:
        """Mark one lease after the other, each in its own transaction: none of them waits with a lock in its hands."""
        for token in tokens:
            await self._store.transact(
                Lane.REST, partial(leases.mark_survived, token=token), now, prompt=True
            )
