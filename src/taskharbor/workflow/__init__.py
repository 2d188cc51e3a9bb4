"""Workflows: jobs that wait for each other and hand their results on.

chain(fetch.s("u"), parse.s(), store.s()).enqueue()
chord([resize.s(i) for i in ids], publish.s()).enqueue()
"""

from taskharbor.workflow.handle import Workflow, WorkflowJobs, WorkflowProgress, WorkflowState
from taskharbor.workflow.parts import Composition, Node, chain, chord, group

__all__ = [
    "Composition",
    "Node",
    "Workflow",
    "WorkflowJobs",
    "WorkflowProgress",
    "WorkflowState",
    "chain",
    "chord",
    "group",
]
