"""Forward the supervisor's events to a child: the application's subscribers are there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from taskharbor.telemetry.events import Event
from taskharbor.worker.supervisor.channel import EventMessage
from taskharbor.worker.supervisor.child_process import ChildProcess

WAITING_MAX = 1_000  # events kept while no child is ready; the oldest are dropped


class EventForwarder:
    """Sends each event to one ready child, and keeps events until there is one."""

    def __init__(self, children: Callable[[], Iterable[ChildProcess]]) -> None:
        self._children = children
        self._waiting: deque[Event] = deque(maxlen=WAITING_MAX)

    def wanted(self, name: str) -> bool:
        return True  # only a child knows its subscribers

    def emit(self, event: Event) -> None:
        self._waiting.append(event)
        self.forward()

    def forward(self) -> None:
        ready = [
            child
            for child in self._children()
            if child.is_ready and not child.has_exited and child.stuck_seconds is None
        ]
        while ready and self._waiting:
            if ready[-1].channel.send(EventMessage(self._waiting[0])):
                self._waiting.popleft()
            else:
                ready.pop()
