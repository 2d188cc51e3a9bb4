"""What the commands repeat, so that showing their help imports nothing of the package, is what the package says."""

from __future__ import annotations

from taskharbor import State, WorkflowState
from taskharbor.cli import jobs, upkeep, workflows
from taskharbor.client import filters
from taskharbor.lifecycle import TERMINAL


def test_the_states_are_the_packages():
    assert set(jobs.STATES) == set(State)
    assert set(upkeep.FINISHED) == TERMINAL
    assert set(workflows.STATES) == set(WorkflowState)


def test_the_longest_page_is_the_packages():
    assert jobs.PAGE_MAX == filters.PAGE_MAX
