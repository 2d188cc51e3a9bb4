"""One transactional producer, in a thread of its own: it commits offsets and writes the records that go with them.

The offsets carry the consumer's generation, so the brokers refuse those of a worker that was away for too long and
whose partitions another one has.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Producer

from taskharbor.errors import StreamError
from taskharbor.streams.client_errors import CREATE_OWN_TOPIC, MISSING, REFUSED, explained, passes
from taskharbor.streams.client_log import MET
from taskharbor.streams.topics.moves import Batch, Ledger, Move, Record
from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.stream")

COMMIT_SECONDS = 0.1  # between two commits of plain successes
ANSWER_SECONDS = 5.0  # for one question; a question that is not answered is asked again
AGAIN_SECONDS, AGAIN_SECONDS_MAX = 0.1, 5.0
POLL_SECONDS = 0.05
# How long the brokers keep the transaction of a worker that has died open. Until then no other one sees what is
# committed of its partitions.
TIMEOUT_MS = 10_000
_FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    }
)


class Group(Protocol):
    """A consumer, as its offsets need it."""

    topics: Sequence[str]

    def group(self) -> Any:
        """The member's id and generation; None while it is no member of its group."""

    def committed(self, partitions: list[Any]) -> list[Any]:
        """What its group has committed."""
        ...


class Transactions:
    """Makes transactions of what the ledger holds."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        ledger: Ledger,
        groups: Sequence[Group],
        failed: Callable[[Exception], None],
    ) -> None:
        self._settings = {"transaction.timeout.ms": TIMEOUT_MS, **settings}
        self._timeout_seconds = int(self._settings["transaction.timeout.ms"]) / 1_000
        self._ledger = ledger
        self._groups = groups
        self._failed = failed
        self._producer: Any = None
        self._refused: dict[int, str] = {}  # records of the transaction at hand, by id, and why
        self._condition = threading.Condition()
        self._asked = 0  # flushes that were asked for
        self._answered = 0
        self._is_urgent = False
        self._is_stopping = False
        self._is_given_up = False
        self._has_ended = False
        self._pause = AGAIN_SECONDS
        self._thread = threading.Thread(target=self._run, name="taskharbor-transactions", daemon=True)

    @property
    def name(self) -> str:
        return str(self._settings["transactional.id"])

    def connect(self, is_unwanted: Callable[[], bool]) -> None:
        """Connect, and end what an earlier worker of this name has left open.

        Once it `is_unwanted`, it ends within some seconds, with an error.
        """
        self._producer = self._connected(is_unwanted)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Make a transaction at once."""
        with self._condition:
            self._is_urgent = True
            self._condition.notify_all()

    def flush(self, seconds: float) -> bool:
        """Commit what the ledger holds now; False if it takes longer."""
        with self._condition:
            self._asked += 1
            mine, self._is_urgent = self._asked, True
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._answered >= mine or self._has_ended, seconds)
            return self._answered >= mine

    def stop(self, seconds: float) -> bool:
        """End the thread, after a last transaction; False if it takes longer."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        self._is_given_up = True
        return not self._thread.is_alive()

    # -- the thread --

    def _run(self) -> None:
        try:
            while True:
                with self._condition:
                    self._condition.wait_for(lambda: self._is_urgent or self._is_stopping, COMMIT_SECONDS)
                    is_last, asked, self._is_urgent = self._is_stopping, self._asked, False
                is_done = self._transact()
                if is_done:
                    with self._condition:
                        self._answered = asked
                        self._condition.notify_all()
                if (is_last and is_done) or self._is_given_up:
                    return
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker has to learn of it
            self._failed(self._explained(error))
        finally:
            self._ledger.failed()
            with self._condition:
                self._has_ended = True
                self._condition.notify_all()

    def _transact(self) -> bool:
        """Do what there is to do; False if it has to be done again."""
        # The order matters: a partition that is lost is gone from the ledger before there is a new generation.
        members = [(each, each.group()) for each in self._groups]
        batch = self._ledger.next_batch()
        if batch.is_empty:
            return True
        offsets = [(member, batch.offsets_of(each.topics)) for each, member in members]
        if any(member is None and commits for member, commits in offsets):
            self._ledger.undone(batch)
            return self._again(None)
        try:
            cause = self._attempt(batch, offsets)
        except Exception:
            self._ledger.undone(batch)  # for those who wait for it: this thread ends
            raise
        if cause is not None:
            self._replace_refused(batch)
            self._ledger.undone(batch)
            return self._again(cause)
        self._ledger.done(batch)
        self._pause = AGAIN_SECONDS
        return True

    def _attempt(self, batch: Batch, offsets: Sequence[tuple[Any, list[Any]]]) -> Any:
        """Make one transaction; return why it did not take effect, None if it did."""
        began = time.monotonic()
        self._refused.clear()
        try:
            self._write(batch, offsets)
        except KafkaException as error:
            cause = error.args[0]
            # (After a record that the brokers refuse, the client takes no other one.)
            if cause.txn_requires_abort() or cause.code() == KafkaError._STATE:
                is_done = self._abort(cause, began, batch)
            elif cause.fatal():
                is_done = self._renew(cause, began, batch)
            else:
                raise
            return None if is_done else cause
        return None

    def _write(self, batch: Batch, offsets: Sequence[tuple[Any, list[Any]]]) -> None:
        producer = self._producer
        producer.begin_transaction()
        for move in batch.moves:
            self._produce(move)
        for member, commits in offsets:
            if commits:
                self._patiently(
                    partial(producer.send_offsets_to_transaction, commits, member, ANSWER_SECONDS)
                )
        self._patiently(partial(producer.commit_transaction, ANSWER_SECONDS))

    def _produce(self, move: Move) -> None:
        while move.record is not None:
            record = move.record

            def delivered(error: Any, _: Any, record: Record = record) -> None:
                if error is not None and error.code() in REFUSED:
                    self._refused[id(record)] = error.str()

            try:
                self._producer.produce(
                    record.topic, record.body, record.key, headers=record.headers, on_delivery=delivered
                )
                return
            except BufferError:  # the client's own queue is full: let some of it go
                self._producer.poll(POLL_SECONDS)
            except KafkaException as error:
                if error.args[0].code() in MISSING:
                    raise explained(error, record.topic, if_missing=CREATE_OWN_TOPIC) from error
                if error.args[0].code() not in REFUSED:
                    raise
                _replace(move, error.args[0].str())

    def _patiently(self, ask: Callable[[], None]) -> None:
        """Ask until the brokers answer, or until the worker gives up."""
        while True:
            try:
                return ask()
            except KafkaException as error:
                cause = error.args[0]
                if cause.txn_requires_abort() or cause.fatal() or not (cause.retriable() or passes(cause)):
                    raise
                if self._is_given_up:
                    raise
                self._complain(cause)

    def _abort(self, cause: Any, began: float, batch: Batch) -> bool:
        """End a transaction without effect; return whether it took effect after all."""
        try:
            self._patiently(lambda: self._producer.abort_transaction(ANSWER_SECONDS))
        except KafkaException as error:
            if not error.args[0].fatal():
                raise
            return self._renew(error.args[0], began, batch)
        return False

    def _renew(self, cause: Any, began: float, batch: Batch) -> bool:
        """Begin anew with another producer; return whether the transaction took effect before that.

        The brokers end a transaction that takes too long, and the producer with it. They do the same with a worker
        after another one of its name has started; then this one must stop.
        """
        if cause.code() in _FENCED and time.monotonic() - began < self._timeout_seconds:
            raise StreamError(
                f"another worker uses the transactional id {self.name!r}, so the brokers accept nothing more from this "
                "one; give each worker a name of its own"
            )
        self._complain(cause)
        self._producer = self._connected(lambda: self._is_given_up)
        return self._took_effect(batch)

    def _took_effect(self, batch: Batch) -> bool:
        """Ask the group. A transaction whose answer was lost may have been committed, with all of its offsets."""
        asked = [(each, batch.offsets_of(each.topics)) for each in self._groups]
        while batch.commits and not self._is_given_up:
            try:
                known = [found for each, offsets in asked if offsets for found in each.committed(offsets)]
            except KafkaException as error:
                self._complain(error.args[0])
                continue
            stored = {(each.topic, each.partition): (each.offset, each.metadata or "") for each in known}
            return all(stored.get(each.partition) == (each.offset, each.metadata) for each in batch.commits)
        return False

    def _replace_refused(self, batch: Batch) -> None:
        """Write something else for the records that the brokers refuse for what they are."""
        for move in batch.moves:
            if (why := self._refused.get(id(move.record))) is not None:
                _replace(move, why)

    def _again(self, cause: Any) -> bool:
        if cause is not None:
            self._complain(cause)
        with self._condition:
            self._is_urgent = True
            self._condition.wait(AGAIN_SECONDS if self._is_stopping else self._pause)
        self._pause = min(2 * self._pause, AGAIN_SECONDS_MAX)
        return False

    def _connected(self, is_unwanted: Callable[[], bool]) -> Any:
        producer = Producer(self._settings, logger=MET)
        while True:
            try:
                producer.init_transactions(ANSWER_SECONDS)
                return producer
            except KafkaException as error:
                cause = error.args[0]
                if not (cause.retriable() or passes(cause)) or is_unwanted():
                    raise self._explained(error) from error
                self._complain(cause)

    def _explained(self, error: Exception) -> Exception:
        return explained(error, self.name, what="transactional id")

    def _complain(self, cause: Any) -> None:
        log_line(
            logger,
            logging.WARNING,
            "a transaction of {producer} is repeated: {error}",
            {"producer": self.name, "error": cause.str()},
        )


def _replace(move: Move, why: str) -> None:
    record = move.record
    assert record is not None, "only a record is refused"
    log_line(
        logger,
        logging.ERROR,
        "{topic} does not take the record of {message}: {error}",
        {"topic": record.topic, "message": str(move.place), "error": why},
    )
    move.record = None if record.instead is None else record.instead(why)
