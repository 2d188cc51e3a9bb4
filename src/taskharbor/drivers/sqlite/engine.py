"""Connections, threads and group commit: how operations reach one SQLite file.

Every write is a function of a `Session`. The thread that holds the writer's lock takes all waiting writes, of
any thread or loop, and commits them in one transaction: fifty callers share one fsync. A synchronous caller does
this in its own thread. One thread of the engine serves all asynchronous callers, so that no loop waits for a disk.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

from taskharbor.clock import Clock
from taskharbor.drivers.sqlite import files, forking, schema
from taskharbor.drivers.sqlite.session import Session
from taskharbor.errors import OperationRefused, PayloadError, StoreError, StoreUnavailable, TaskHarborError
from taskharbor.sync import in_sync_call

T = TypeVar("T")

logger = logging.getLogger("taskharbor.sqlite")

BATCH_MAX = 256  # writes joined in one transaction, so that each of them ends soon
LOCK_PATIENCE_SECONDS = 60.0  # how long a write waits for other processes before the store is "unavailable"
LOCK_WARNING_SECONDS = 5.0
CLOSING_PATIENCE_SECONDS = 1.0
# Constraints that a row breaks by its content; the others are between rows, and ours to keep.
_OF_CONTENT = (sqlite3.SQLITE_CONSTRAINT_CHECK, sqlite3.SQLITE_CONSTRAINT_NOTNULL)
# Connections of a parent process: never used, never closed, see forget_after_fork.
_INHERITED: list[object] = []


# Re-entrant: a signal handler or a finalizer may run in the middle of its thread's own turn. The thread then gets an
# error, and does not wait for itself.
_Lock: TypeAlias = threading.RLock


class _Write(Generic[T]):
    """A write that waits for its turn, and afterwards its outcome."""

    __slots__ = ("committed", "done", "error", "future", "loop", "now", "operation", "result", "withdrawn")

    def __init__(self, operation: Callable[[Session], T], now: int | None) -> None:
        self.operation = operation
        self.now = now
        self.result: T | None = None
        self.error: BaseException | None = None
        self.committed = False
        self.done = False  # committed or failed, and delivered
        self.withdrawn = False  # its caller was interrupted: it is not to happen any more
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: asyncio.Future[T] | None = None

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


class Engine:
    def __init__(self, path: str, *, synchronous: str, clock: Clock) -> None:
        self.path = path
        self.clock = clock
        self._synchronous = synchronous
        self._pid = os.getpid()
        self._reset()
        forking.register(self)

    def _reset(self) -> None:
        self._closing = False  # then no write waits long for other processes
        self._pending: deque[_Write[Any]] = deque()
        self._write_lock = threading.RLock()
        self._read_lock = threading.RLock()
        self._change_lock = threading.RLock()
        self._open_lock = threading.RLock()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        # Event loops ask it for its data version, and nothing else: they must not wait behind a long read.
        self._change_reader: sqlite3.Connection | None = None
        self._bell: SimpleQueue[bool] | None = None
        self._thread: threading.Thread | None = None
        self._read_pool: ThreadPoolExecutor | None = None
        self._held: list[_Lock] = []
        self._openings = 0
        # The write-ahead log is the same file while any process has it open.
        self._log_path = ""
        self._file: int | None = None
        self._log: int | None = None

    # -- forking --

    def hold_for_fork(self) -> None:
        """Let go of the file before a fork. A child that inherits an open connection inherits SQLite's belief
        that this process holds its locks, which no child does: its parent would remove the write-ahead log
        under it, and no thread of the child would release a lock that was held at that moment."""
        if any(map(_is_mine, self._locks())):  # a fork in a signal handler that interrupted one of our calls
            return
        for lock in self._locks():
            lock.acquire()
            self._held.append(lock)
        self._let_go()

    def release_after_fork(self) -> None:
        while self._held:
            self._held.pop().release()

    def _locks(self) -> tuple[_Lock, ...]:
        # A thread that takes several takes them in this order.
        return (self._write_lock, self._read_lock, self._change_lock, self._open_lock)

    def forget_after_fork(self) -> None:
        # Should a connection have come along after all (a fork that Python did not see), SQLite forbids
        # using, and even closing it here.
        if self._pid != os.getpid():
            _INHERITED.append((self._connections(), self._thread, self._read_pool))
            self._pid = os.getpid()
            self._reset()

    # -- opening and closing --

    def open(self) -> None:
        self.forget_after_fork()
        if self._writer is not None:
            return
        _refuse_to_wait_for_myself(self._open_lock)
        with self._open_lock:
            if self._writer is not None:
                return
            try:
                self._change_reader, self._reader, writer = self._patiently(self._connect_all)
                self._openings += 1
                self._log_path = os.path.realpath(self.path) + "-wal"
                self._file, self._log = _inode(self.path), _inode(self._log_path)
                self._writer = (
                    writer  # the last one: a thread that sees it, without the lock, finds the others
                )
            except sqlite3.Error as error:
                raise self._explained(error) from error

    def migrate(self) -> list[str]:
        """Bring the schema up to date, also in a database of another application."""
        self.forget_after_fork()
        try:
            connection = self._connect()
            try:
                applied = self._patiently(lambda: schema.migrate(connection))
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise self._explained(error) from error
        self.open()
        return applied

    def _connect_all(self) -> tuple[sqlite3.Connection, sqlite3.Connection, sqlite3.Connection]:
        """One to ask for changes, one to read, one to write."""
        with ExitStack() as undo:
            writer = self._connect()
            undo.callback(writer.close)
            schema.ensure(writer)
            writer.execute("PRAGMA journal_mode = WAL")
            writer.execute("PRAGMA busy_timeout = 0")  # _patiently waits instead
            reader = self._connect()
            undo.callback(reader.close)
            reader.execute("PRAGMA query_only = ON")
            change_reader = self._connect()
            undo.callback(change_reader.close)
            change_reader.execute("PRAGMA query_only = ON")
            undo.pop_all()
        return change_reader, reader, writer

    def _connect(self) -> sqlite3.Connection:
        if not Path(self.path).resolve().parent.is_dir():
            raise StoreError(
                f"the folder of {self.path} does not exist ({Path(self.path).resolve().parent}); make it first"
            )
        files.create_private(self.path)
        connection = sqlite3.connect(
            self.path, timeout=5.0, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        # Bytes that are no valid UTF-8 (written by hand) are read as lone surrogates, and do not fail the statement.
        connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
        try:
            # Read something before any pragma writes: a foreign or damaged file is left exactly as it is.
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("PRAGMA cache_size = -16384")
            connection.execute("PRAGMA temp_store = MEMORY")
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Finish what was asked for, and let go of the file; what is asked for later opens it anew."""
        self.forget_after_fork()
        self._closing = True
        try:
            self._finish_and_let_go()
        finally:
            self._closing = False

    def _finish_and_let_go(self) -> None:
        with self._open_lock:
            bell, thread, pool = self._bell, self._thread, self._read_pool
            self._bell = self._thread = self._read_pool = None
        if bell is not None and thread is not None:
            bell.put(False)
            if thread is not threading.current_thread():
                thread.join()
        if pool is not None:
            pool.shutdown(wait=True)
        with self._write_lock, self._read_lock, self._change_lock:
            self._let_go()

    def _let_go(self) -> None:
        connections = self._connections()
        self._change_reader = self._reader = self._writer = None
        for connection in connections:
            connection.close()

    def _connections(self) -> list[sqlite3.Connection]:
        return [each for each in (self._change_reader, self._reader, self._writer) if each is not None]

    # -- writes --

    async def write(self, operation: Callable[[Session], T], now: int | None = None) -> T:
        """Run the operation in a transaction that is committed, and synced, when this returns."""
        self.open()
        write = _Write(operation, now)
        if in_sync_call():
            _refuse_to_wait_for_myself(self._write_lock)
            self._pending.append(write)
            self._serve(write)
            return write.outcome()
        write.loop = asyncio.get_running_loop()
        write.future = write.loop.create_future()
        self._pending.append(write)
        self._ring()
        return await write.future

    def _serve(self, write: _Write[Any]) -> None:
        """Commit batches until this write is done; very often another thread's batch contains it."""
        try:
            while not write.done:
                with self._write_lock:
                    try:
                        if not write.done:
                            self._commit_batch()
                    except BaseException:
                        write.withdrawn = True  # before another thread can take it
                        raise
        finally:
            write.withdrawn = not write.done

    def _ring(self) -> None:
        with self._open_lock:  # so that no ring comes after the one that ends the thread
            if self._bell is None:
                bell: SimpleQueue[bool] = SimpleQueue()
                self._thread = threading.Thread(
                    target=self._serve_bell, args=(bell,), name="taskharbor-sqlite", daemon=True
                )
                self._thread.start()
                self._bell = bell
            self._bell.put(True)

    def _serve_bell(self, bell: SimpleQueue[bool]) -> None:
        while bell.get():
            while self._pending:
                with self._write_lock:
                    self._commit_batch()

    def _commit_batch(self) -> None:
        taken: list[_Write[Any]] = []
        decided = False
        try:
            while self._pending and len(taken) < BATCH_MAX:
                taken.append(self._pending[0])  # an interrupt may come before it is taken off, never after
                self._pending.popleft()
            batch = [write for write in taken if not write.withdrawn]
            if batch:
                self._commit_somehow(batch)
            decided = True
            self._deliver(batch)
        except BaseException:
            # Ctrl-C interrupts this thread, not those whose writes it was about to commit with its own.
            self._deliver([write for write in taken if decided or write.committed])
            if not decided:
                self._put_back(taken)
            raise

    def _put_back(self, taken: list[_Write[Any]]) -> None:
        still_there = bool(taken and self._pending and self._pending[0] is taken[-1])
        returned = [write for write in (taken[:-1] if still_there else taken) if not write.committed]
        self._pending.extendleft(returned[::-1])
        # The engine's thread serves callers on a loop, and may have found nothing to do while these were taken.
        if any(write.loop is not None for write in taken):
            self._ring()

    def _commit_somehow(self, batch: list[_Write[Any]]) -> None:
        """Together if that works; otherwise each finds out for itself."""
        try:
            self._commit(batch)
        except Exception as error:  # noqa: BLE001 - it belongs to the callers that wait for it
            if len(batch) == 1:
                batch[0].error = self._explained(error)
            else:
                self._commit_one_by_one(batch)

    def _commit_one_by_one(self, batch: list[_Write[Any]]) -> None:
        """The joint transaction failed (a full disk, say): each write has its own fate."""
        for write in batch:
            try:
                self._commit([write])
            except Exception as error:  # noqa: BLE001 - it belongs to the caller that waits for it
                write.error = self._explained(error)

    def _commit(self, batch: list[_Write[Any]]) -> None:
        self.open()  # it may have been closed, for good or for a fork, while these waited for their turn
        connection = self._writer
        assert connection is not None, "only the holder of the writer's lock closes it"
        self._refuse_if_removed()
        _end_what_was_left_open(connection)
        begun = False
        try:
            self._patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
            begun = True
            for write in batch:
                write.error = None
                # The time is read with the lock held: a lease must not be born expired.
                session = Session(connection, self.clock.now() if write.now is None else write.now)
                if len(batch) == 1:
                    write.result = write.operation(session)
                else:
                    self._apply_guarded(session, write)
            connection.execute("COMMIT")
        except BaseException as error:
            # SQLite itself rolls back on some errors, a full disk among them.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            elif begun and not isinstance(error, Exception):  # an interrupt right after the commit
                _mark_committed(batch)
            raise
        _mark_committed(batch)

    def _refuse_if_removed(self) -> None:
        """SQLite writes on happily into a file that has been deleted: what it accepts then is lost."""
        has_file, has_log = _inode(self.path) == self._file, _inode(self._log_path) == self._log
        if has_file and has_log:
            return
        with self._read_lock, self._change_lock:
            self._let_go()  # of a log that is gone from its folder, the last one to close saves what it holds
        if has_file:
            raise StoreUnavailable(
                f"{self._log_path} was removed while it was open; nothing was written. It is a part of the "
                "database: leave it alone"
            )
        raise StoreUnavailable(
            f"{self.path} was removed or replaced while it was open; nothing was written. "
            "The next use opens the file that is there then"
        )

    def _apply_guarded(self, session: Session, write: _Write[Any]) -> None:
        """One member of a joint transaction: what it got wrong undoes only itself."""
        session.execute("SAVEPOINT member")
        try:
            write.result = write.operation(session)
        except Exception as error:
            if not session.connection.in_transaction:
                raise
            session.execute("ROLLBACK TO member")
            write.error = self._explained(error)
        session.execute("RELEASE member")

    def _patiently(self, step: Callable[[], T]) -> T:
        """Repeat a step while other processes hold the lock. SQLite's own waiting sleeps up to 100 ms a
        time, and gives up at once where it sees a deadlock coming; this does neither."""
        asked_at = time.monotonic()
        warned = False
        pause = 0.0001
        while True:
            try:
                return step()
            except sqlite3.OperationalError as error:
                if not _is_busy(error):
                    raise
                waited = time.monotonic() - asked_at
                if waited > (CLOSING_PATIENCE_SECONDS if self._closing else LOCK_PATIENCE_SECONDS):
                    raise StoreUnavailable(
                        f"{self.path} has been locked by another process for {waited:.0f} s; "
                        "look for a transaction that was left open"
                    ) from error
                if waited > LOCK_WARNING_SECONDS and not warned:
                    warned = True
                    logger.warning("%s is locked by another process; waiting for it", self.path)
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 1.5, 0.005)

    def _deliver(self, batch: list[_Write[Any]]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_Write[Any]]] = {}
        for write in batch:
            write.done = True
            if write.loop is not None:
                by_loop.setdefault(write.loop, []).append(write)
        for loop, writes in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, writes)
            except RuntimeError:  # the loop was closed: no caller waits any more
                continue

    # -- reads --

    async def read(self, operation: Callable[[Session], T], now: int | None = None) -> T:
        """Run the operation on one snapshot of the database."""
        self.open()
        if in_sync_call():
            _refuse_to_wait_for_myself(self._read_lock)
            return self._read(operation, now)
        with self._open_lock:  # so that nothing is given to a pool that was shut down
            if self._read_pool is None:
                self._read_pool = ThreadPoolExecutor(1, thread_name_prefix="taskharbor-sqlite-read")
            reading = asyncio.get_running_loop().run_in_executor(self._read_pool, self._read, operation, now)
        return await reading

    def _read(self, operation: Callable[[Session], T], now: int | None) -> T:
        with self._read_lock:
            connection = self._open_reader()
            try:
                _end_what_was_left_open(connection)
                connection.execute("BEGIN")
                try:
                    return operation(Session(connection, self.clock.now() if now is None else now, found={}))
                finally:
                    if connection.in_transaction:
                        connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise self._explained(error) from error

    async def read_apart(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Run an operation that takes seconds on a connection of its own, so that no other read waits for it."""
        self.open()
        return (
            self._read_apart(operation)
            if in_sync_call()
            else await asyncio.to_thread(self._read_apart, operation)
        )

    def _read_apart(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        try:
            connection = self._connect()
            try:
                connection.execute("PRAGMA query_only = ON")
                connection.execute("BEGIN")
                return operation(connection)
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def data_version(self) -> int:
        """Return a number that changes with every commit, of any process."""
        with self._change_lock:
            self.open()
            version = self.data_version_if_open()
            assert version is not None, "only the holder of its lock closes it"
            return version

    def data_version_if_open(self) -> int | None:
        """The same for a waiter, which must not reopen what another thread closes."""
        self.forget_after_fork()
        with self._change_lock:
            if self._change_reader is None:
                return None
            try:
                (version,) = self._change_reader.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error as error:
                raise self._explained(error) from error
            # Each connection counts for itself: a new one may say the old one's number again.
            return (self._openings << 32) + int(version)

    def _open_reader(self) -> sqlite3.Connection:
        self.open()
        assert self._reader is not None, "only the holder of the reader's lock closes it"
        return self._reader

    def _explained(self, error: BaseException) -> BaseException:
        if isinstance(error, TaskHarborError) or not isinstance(error, sqlite3.Error):
            return error
        known = schema.explain(error, self.path)
        if known is not None:
            return known
        if isinstance(error, sqlite3.IntegrityError) and error.sqlite_errorcode not in _OF_CONTENT:
            return OperationRefused(
                f"SQLite refused the operation on {self.path}: {error}. Nothing was changed by it"
            )
        if isinstance(error, sqlite3.DataError | sqlite3.IntegrityError):
            return PayloadError(f"SQLite cannot keep or give this: {error}. Nothing was changed by it")
        return StoreUnavailable(
            f"SQLite refused the operation on {self.path}: {error}. Nothing was changed by it"
        )


def _is_mine(lock: _Lock) -> bool:
    return bool(lock._is_owned())  # type: ignore[attr-defined]  # as threading.Condition asks it


def _refuse_to_wait_for_myself(lock: _Lock) -> None:
    if _is_mine(lock):
        raise StoreError(
            "a signal handler or finalizer cannot use the store while it interrupts another call to it; "
            "set a flag there, or hand the work to a thread"
        )


def _end_what_was_left_open(connection: sqlite3.Connection) -> None:
    """Ctrl-C may come right after a BEGIN, or right before a ROLLBACK: every later BEGIN would be refused."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _mark_committed(batch: list[_Write[Any]]) -> None:
    for write in batch:
        write.committed = True


def _resolve(writes: list[_Write[Any]]) -> None:
    for write in writes:
        future = write.future
        if future is None or future.done():  # its caller was cancelled; the write has happened nevertheless
            continue
        if write.error is not None:
            future.set_exception(write.error)
        else:
            future.set_result(write.result)


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
