"""Events that the supervisor tells: the application's subscribers live in the children."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from taskharbor.telemetry.events import Event
from taskharbor.worker.supervisor.channel import EventMessage
from taskharbor.worker.supervisor.child_process import ChildProcess

WAITING_MAX = 1_000  # events while no child is there; the oldest are dropped


class Relay:
    """Hands each event to one child; while there is none, it waits for the next."""

    def __init__(self, children: Callable[[], Iterable[ChildProcess]]) -> None:
        self._children = children
        self._waiting: deque[Event] = deque(maxlen=WAITING_MAX)

    def wanted(self, name: str) -> bool:
        return True  # a child knows whether anybody is subscribed

    def emit(self, event: Event) -> None:
        self._waiting.append(event)
        self.pass_on()

    def pass_on(self) -> None:
        ready = [
            child
            for child in self._children()
            if child.is_ready and not child.is_over and child.stuck_seconds is None
        ]
        while ready and self._waiting:
            if ready[-1].channel.send(EventMessage(self._waiting[0])):
                self._waiting.popleft()
            else:
                ready.pop()
