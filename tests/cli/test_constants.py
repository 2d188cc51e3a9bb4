"""What the commands repeat, so that showing their help imports nothing of the package, is what the package says."""

from __future__ import annotations

from taskharbor import Reason, State, WorkflowState, presets
from taskharbor.cli import changes, upkeep, workflows
from taskharbor.cli import filters as options
from taskharbor.client import filters
from taskharbor.rules.lifecycle import TERMINAL
from taskharbor.rules.retry import RetryPolicy


def test_the_states_are_the_packages():
    assert set(options.STATES) == set(State)
    assert tuple(Reason) == options.REASONS
    assert set(upkeep.FINISHED) == TERMINAL
    assert set(workflows.STATES) == set(WorkflowState)


def test_the_longest_page_is_the_packages():
    assert options.PAGE_MAX == filters.PAGE_MAX


def test_the_policies_of_a_worker_are_the_presets():
    names = {name.lower() for name, value in vars(presets).items() if isinstance(value, RetryPolicy)}
    assert (
        set(changes.POLICIES) == names
    )  # none is no policy at all, the preset of that name one that ends all
