"""Bugs that are planted in recurring jobs, workflows and durable steps: each breaks one rule that is watched."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from tests.simulation.planted import Planted
from tests.simulation.world import World


class Bug(Struct, frozen=True):
    plant: Planted
    kind: type[World]
    rule: str = ""  # the finding begins so; empty: any rule may find it


PLANTED_IN_STORIES: dict[str, Bug] = {}


def plant(what: str, kind: type[World], rule: str) -> Callable[[Planted], Planted]:
    def keep(planted: Planted) -> Planted:
        PLANTED_IN_STORIES[what] = Bug(planted, kind, rule)
        return planted

    return keep
