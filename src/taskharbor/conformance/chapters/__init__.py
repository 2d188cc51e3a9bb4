"""The chapters of the contract, in the order in which to make them pass."""

from __future__ import annotations

from taskharbor.conformance.chapters.aside import Aside
from taskharbor.conformance.chapters.audit import Audit
from taskharbor.conformance.chapters.backlogs import Backlogs
from taskharbor.conformance.chapters.cancellation import Cancellation
from taskharbor.conformance.chapters.claiming import Claiming
from taskharbor.conformance.chapters.collecting import Collecting
from taskharbor.conformance.chapters.concurrency import Concurrency, SecondDriver
from taskharbor.conformance.chapters.copying import Copying
from taskharbor.conformance.chapters.delivery import Delivering
from taskharbor.conformance.chapters.dependants import Dependants
from taskharbor.conformance.chapters.enqueueing import Enqueueing
from taskharbor.conformance.chapters.expiry import Expiry
from taskharbor.conformance.chapters.failure import Failure
from taskharbor.conformance.chapters.fencing import Fencing
from taskharbor.conformance.chapters.groups import Groups
from taskharbor.conformance.chapters.handing_over import HandingOver
from taskharbor.conformance.chapters.history import History
from taskharbor.conformance.chapters.ingesting import Ingesting
from taskharbor.conformance.chapters.leases import Leases
from taskharbor.conformance.chapters.life import Life
from taskharbor.conformance.chapters.operators import Operators
from taskharbor.conformance.chapters.pruning import Pruning
from taskharbor.conformance.chapters.reads import Reads
from taskharbor.conformance.chapters.rearming import Rearming
from taskharbor.conformance.chapters.records import Records
from taskharbor.conformance.chapters.rollups import Rollups
from taskharbor.conformance.chapters.searching import Searching
from taskharbor.conformance.chapters.states import States
from taskharbor.conformance.chapters.steps import Children, Steps
from taskharbor.conformance.chapters.waits import Waits
from taskharbor.conformance.chapters.workflows import Workflows
from taskharbor.conformance.store import Chapter

CHAPTERS: tuple[type[Chapter], ...] = (
    Life,
    States,
    Delivering,
    Enqueueing,
    Expiry,
    Claiming,
    Leases,
    Fencing,
    Collecting,
    Failure,
    Cancellation,
    Operators,
    History,
    Reads,
    Searching,
    Dependants,
    Steps,
    Children,
    Workflows,
    Rearming,
    Pruning,
    Records,
    Rollups,
    Waits,
    Groups,
    Aside,
    Audit,
    HandingOver,
    Ingesting,
    Copying,
    Backlogs,
    Concurrency,
)
SECOND_DRIVER_CHAPTERS: tuple[type[Chapter], ...] = (SecondDriver,)
