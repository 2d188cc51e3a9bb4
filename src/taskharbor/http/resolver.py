"""Names to addresses, in threads of its own.

The system looks names up in a call that blocks and that nothing can end, and a name server that does not answer holds
it for many seconds. In the loop's own threads a few such names would hold up every other job. Here a name takes one
thread however many jobs ask for it, and the names of one domain take a share of the threads.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

THREADS_MAX = 32
DOMAIN_THREADS_MAX = 4  # for the names that share their last two labels

Look = Callable[[str, int], Sequence[str]]


def look_up(host: str, port: int) -> list[str]:
    """The addresses of a name, in the system's order."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class _Lookup:
    """A lookup that runs or waits for a thread, with the callers that wait for its addresses."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.domain = ".".join(host.split(".")[-2:])
        self.waiters: set[asyncio.Future[Sequence[str]]] = set()


class Resolver:
    """Looks names up for any number of loops, in a bounded number of threads.

    The threads are daemons, started for one lookup each: next to asking the network that costs nothing, and a lookup
    that hangs does not keep the process from its end.
    """

    def __init__(
        self, look: Look = look_up, *, threads: int = THREADS_MAX, domain_threads: int = DOMAIN_THREADS_MAX
    ) -> None:
        self._look = look
        self._threads = threads
        self._domain_threads = domain_threads
        self.forget()

    def forget(self) -> None:
        """Begin anew, as a child that was forked has to: it has none of the threads."""
        self._lock = threading.Lock()
        self._lookups: dict[tuple[str, int], _Lookup] = {}  # begun or waiting
        self._waiting: deque[_Lookup] = deque()
        self._begun: Counter[str] = Counter()  # threads by domain

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a name, or raise what the system says. A caller that is cancelled leaves at once."""
        answered: asyncio.Future[Sequence[str]] = asyncio.get_running_loop().create_future()
        lookup = self._join(host, port, answered)
        try:
            with self._lock:
                self._start()
            return await answered
        finally:
            self._leave(lookup, answered)

    def _join(self, host: str, port: int, answered: asyncio.Future[Sequence[str]]) -> _Lookup:
        with self._lock:
            lookup = self._lookups.get((host, port))
            if lookup is None:
                lookup = self._lookups[host, port] = _Lookup(host, port)
                self._waiting.append(lookup)
            lookup.waiters.add(answered)
            return lookup

    def _leave(self, lookup: _Lookup, answered: asyncio.Future[Sequence[str]]) -> None:
        with self._lock:
            lookup.waiters.discard(answered)
            if not lookup.waiters and lookup in self._waiting:
                self._waiting.remove(lookup)
                del self._lookups[lookup.host, lookup.port]

    def _start(self) -> None:
        """Begin what may begin, the oldest first."""
        for lookup in list(self._waiting):
            if self._begun.total() >= self._threads:
                return
            if self._begun[lookup.domain] < self._domain_threads:
                threading.Thread(
                    target=self._run, args=(lookup,), name="taskharbor-resolve", daemon=True
                ).start()
                self._waiting.remove(lookup)
                self._begun[lookup.domain] += 1

    def _run(self, lookup: _Lookup) -> None:
        result: Sequence[str] | Exception
        try:
            result = self._look(lookup.host, lookup.port)
        except Exception as error:  # noqa: BLE001 - the callers get it
            result = error
        with self._lock:
            self._begun[lookup.domain] -= 1
            del self._lookups[lookup.host, lookup.port]
            waiters = list(lookup.waiters)
        for answered in waiters:
            try:
                answered.get_loop().call_soon_threadsafe(_answer, answered, result)
            except RuntimeError:
                pass  # its loop has ended
        with self._lock:
            self._begun += Counter()  # without the domains that have no thread
            self._start()


def _answer(answered: asyncio.Future[Any], result: Sequence[str] | Exception) -> None:
    if answered.done():
        return
    if isinstance(result, Exception):
        answered.set_exception(result)
    else:
        answered.set_result(result)


SYSTEM = Resolver()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SYSTEM.forget)
