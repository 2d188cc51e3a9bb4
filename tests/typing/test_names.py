"""What type checkers are told is what the code does: names as types, and keywords as dictionaries."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, get_args

import pytest

from taskharbor import AttemptStatus, Delivery, EventName, Reason, State, WorkflowState, records
from taskharbor.client import declaring, filters, options, schedule
from taskharbor.telemetry.events import EVENT_NAMES
from taskharbor.workflow.handle import WorkflowStateName

NAMES: list[tuple[Any, type[StrEnum]]] = [
    (records.StateName, State),
    (records.ReasonName, Reason),
    (records.AttemptStatusName, AttemptStatus),
    (records.DeliveryName, Delivery),
    (records.MisfireName, records.Misfire),
    (WorkflowStateName, WorkflowState),
]


@pytest.mark.parametrize(("names", "enumeration"), NAMES, ids=[each.__name__ for _, each in NAMES])
def test_the_names_of_an_enumeration_are_its_members(names: Any, enumeration: type[StrEnum]):
    assert list(get_args(names)) == [member.value for member in enumeration]


def test_the_names_of_events_are_the_events():
    assert set(get_args(EventName)) == set(EVENT_NAMES)


def test_the_keywords_of_a_bulk_operation_are_the_parts_of_a_filter():
    assert set(filters.JobWhere.__annotations__) == filters.FILTERS
    assert set(filters.DeadWhere.__annotations__) == filters.FILTERS - {"state"}
    assert set(filters.CHECKS) == filters.FILTERS


def test_each_option_of_a_declaration_has_a_default():
    assert declaring.TASK_DEFAULTS.keys() | declaring.RECURRENCE_DEFAULTS.keys() == options.DECLARED_ONLY


def test_what_a_schedule_can_be_given_is_what_it_takes():
    taken = schedule.JOB_OPTIONS | schedule.RECURRENCE_OPTIONS
    assert set(schedule.ScheduleOptions.__annotations__) == taken - {"schedule"}
    assert set(schedule.ScheduleChanges.__annotations__) == taken | {"task", "payload"}


def test_a_job_of_a_schedule_takes_no_option_that_a_job_does_not():
    assert schedule.JOB_OPTIONS < options.OPTION_NAMES
