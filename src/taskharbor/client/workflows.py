"""`harbor.workflows`: read, cancel and retry workflows."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from taskharbor.client.actions import new_action
from taskharbor.client.filters import checked_cursor, checked_limit, cursor_after
from taskharbor.client.operating import Operator
from taskharbor.client.options import checked_id
from taskharbor.client.sync_methods import sync_method
from taskharbor.client.transaction import refuse_inside_transaction
from taskharbor.codec import agreeing, counted
from taskharbor.drivers.base import Cancel, Requeue, Verb, member_id
from taskharbor.drivers.capabilities import Workflows as WorkflowsCapability
from taskharbor.errors import JobConflict
from taskharbor.records import JobFilter, JobRecord, State
from taskharbor.rules.operating import needs_force

if TYPE_CHECKING:
    from taskharbor.workflow import Composition, Workflow
    from taskharbor.workflow.handle import WorkflowState, WorkflowStateName

CANCEL_PAGE = 5_000
LOOK_PAGE = 50  # workflows read at a time, at least, to find those in a state
LOOK_MAX = 500  # read in one call, at most: the store counts the jobs of each


class WorkflowList(list["Workflow"]):
    """A page of workflows; `next_cursor` continues the list, and is None at its end."""

    def __init__(self, workflows: list[Workflow], next_cursor: str | None) -> None:
        super().__init__(workflows)
        self.next_cursor = next_cursor


class Workflows(Operator):
    """`harbor.workflows`"""

    async def aenqueue(self, composition: Composition) -> Workflow:
        """Store a workflow. An empty one does not know its harbor; this one is used."""
        from taskharbor.workflow.parts import Composition
        from taskharbor.workflow.storing import store_workflow

        if not isinstance(composition, Composition):
            from taskharbor.workflow.parts import chain

            composition = chain(composition)
        return await store_workflow(self._harbor, composition._part(), composition._options)

    enqueue = sync_method(aenqueue)

    async def aget(self, id: object) -> Workflow:
        """Return the workflow with this id, or raise WorkflowNotFound."""
        from taskharbor.workflow.handle import Workflow, not_found

        workflow_id = checked_id(id)
        [record] = await WorkflowsCapability.of(self._driver).get_workflows([workflow_id])
        if record is None:
            raise not_found(workflow_id)
        return Workflow._stored(record, self._harbor)

    get = sync_method(aget)

    async def alist(
        self,
        *,
        state: WorkflowState | WorkflowStateName | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> WorkflowList:
        """List matching workflows, newest first. A page may be shorter than `limit`; the last has no `next_cursor`."""
        from taskharbor.workflow.handle import checked_state

        wanted = None if state is None else checked_state(state)
        last_id, limit = checked_cursor(cursor), checked_limit(limit)
        page = await (self._page(last_id, limit) if wanted is None else self._search(wanted, last_id, limit))
        page.next_cursor = cursor_after(page.next_cursor)
        return page

    list = sync_method(alist)

    async def _page(self, cursor: str | None, limit: int) -> WorkflowList:
        """A page after this id; its own cursor is the id that it ends with."""
        from taskharbor.workflow.handle import Workflow

        page = await WorkflowsCapability.of(self._driver).list_workflows(cursor=cursor, limit=limit)
        found = [Workflow._stored(record, self._harbor) for record in page.workflows]
        return WorkflowList(found, page.next_cursor)

    async def _search(self, state: WorkflowState, cursor: str | None, limit: int) -> WorkflowList:
        """List those in a state. The store does not keep it: it follows from the jobs' states and `on_failure`."""
        found: builtins.list[Workflow] = []
        for _ in range(0, LOOK_MAX, LOOK_PAGE):
            page = await self._page(cursor, max(limit, LOOK_PAGE))
            for workflow in page:
                if workflow.state is state:
                    found.append(workflow)
                    if len(found) == limit:
                        ended = workflow is page[-1] and page.next_cursor is None
                        return WorkflowList(found, None if ended else workflow.id)
            cursor = page.next_cursor
            if cursor is None:
                break
        return WorkflowList(found, cursor)

    async def acancel(self, id: object) -> Workflow:
        """Cancel the members that have not begun, and ask running ones to stop."""
        workflow = await self.aget(id)
        refuse_inside_transaction(self._harbor, "workflows.cancel()")
        await self._harbor._collect_all_expired()
        action = new_action(Verb.CANCEL_WORKFLOW, subject=workflow.id)
        total = workflow._record.total
        for start in range(0, total, CANCEL_PAGE):
            indexes = range(start, min(start + CANCEL_PAGE, total))
            members = [member_id(workflow.id, index) for index in indexes]
            answers = await self._apply(Cancel(), members, action)
            await self._harbor.jobs._report_ended(answers)
        return await self.aget(id)

    cancel = sync_method(acancel)

    async def aretry(self, id: object, *, force: bool = False) -> Workflow:
        """Begin a new run of every member that is dead or cancelled, so that the workflow continues.

        Members that depend on others wait again. Members that are at_most_once and may have been executed
        are only run again with `force=True`.
        """
        workflow = await self.aget(id)
        refuse_inside_transaction(self._harbor, "workflows.retry()")
        await self._harbor._collect_all_expired()
        ended: builtins.list[JobRecord] = []
        for state in (State.DEAD, State.CANCELLED):
            async for jobs in self._matching(JobFilter(state=state, workflow=workflow.id)):
                ended += jobs
        once = [job.id for job in ended if needs_force(job)]
        if once and not force:
            raise JobConflict(
                once[0],
                f"{counted(len(once), 'member')} of workflow {workflow.id} {agreeing(len(once), 'is', 'are')} "
                f"at_most_once and may have been executed, such as {once[0]}; "
                f"give force=True to run {agreeing(len(once), 'it', 'them')} again",
            )
        # By id, so in the order of the graph: a requeued member makes its dependants wait again.
        details = {"force": True} if once else None
        action = new_action(Verb.RETRY_WORKFLOW, subject=workflow.id, details=details)
        await self._apply(Requeue(), sorted(job.id for job in ended), action)
        return await self.aget(id)

    retry = sync_method(aretry)
