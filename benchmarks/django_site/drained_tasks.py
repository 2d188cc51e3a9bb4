"""What is drained, and `python -m drained_tasks COUNT`, which enqueues it."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    import django

    django.setup()
    from django.db import transaction
    from drained_tasks import noop as enqueued

    with transaction.atomic():
        for _ in range(int(sys.argv[1])):
            enqueued.enqueue()
else:
    from django.tasks import task

    @task
    def noop() -> None:
        """Do nothing."""
