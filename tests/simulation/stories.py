"""The worlds of recurring jobs, workflows and durable steps, by name."""

from __future__ import annotations

from tests.simulation.recurring_world import HecticWorld, RecurringWorld
from tests.simulation.story_world import StoryWorld
from tests.simulation.workflow_world import StepsWorld, WorkflowWorld

KINDS: dict[str, type[StoryWorld]] = {
    "recurring": RecurringWorld,
    "hectic": HecticWorld,
    "workflows": WorkflowWorld,
    "steps": StepsWorld,
}
