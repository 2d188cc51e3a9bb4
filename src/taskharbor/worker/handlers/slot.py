"""`Slot`: the task that awaits one async handler after the other, and records which code cancels it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskharbor.context import current_execution
from taskharbor.own_tasks import OwnTask

if TYPE_CHECKING:
    from taskharbor.worker.pipeline.execution import Execution


class Slot(OwnTask[None]):
    """A task whose `cancel` cancels the handler that it awaits. It records whether other code cancelled the handler."""

    execution: Execution | None = None  # the execution whose handler it awaits

    def cancel(self, msg: Any = None) -> bool:
        execution = self.execution
        if execution is None:
            return super().cancel(msg)
        canceller = current_execution.get()
        if canceller is not execution:
            execution.disturbed = True
            if canceller is not None:
                canceller.meddled()
        return super(OwnTask, self).cancel(msg)

    def interrupt(self) -> None:
        """Cancel the handler on the worker's behalf."""
        super(OwnTask, self).cancel()
