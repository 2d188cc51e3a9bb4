"""Collect garbage less often, in a process that does nothing but execute jobs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Objects that are made and not freed before the collector looks at them. Python looks after 700: in each batch of jobs
# that a worker claims, which are all in use.
YOUNG_OBJECTS = 50_000

DEFAULT_THRESHOLDS = gc.get_threshold()  # as Python starts: no application has been imported yet


@contextmanager
def collecting_less_often(wanted: bool = True) -> Iterator[None]:
    """Collect less often, and leave alone what is loaded already. An application's own settings stay as they are.

    Only for processes of `taskharbor worker`: where a `Worker` runs inside an application, the process is not ours.
    """
    thresholds = gc.get_threshold()
    if not wanted or not gc.isenabled() or thresholds != DEFAULT_THRESHOLDS:
        yield
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
