"""Run inside a process that has Django: the project `site`, its database migrated."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


@pytest.fixture(autouse=True)
def empty_store():
    """Each case begins with an empty store, and leaves nothing in the lists of the tasks."""
    from shop import tasks

    from taskharbor.integrations.django import get_harbor

    harbor = get_harbor()
    harbor.jobs.delete_all()
    tasks.seen.clear()
    yield
    harbor.close()


@pytest.fixture
def drain():
    """Execute what is due, in this process."""
    from taskharbor import Worker
    from taskharbor.integrations.django import get_harbor

    def run(**options) -> None:
        with get_harbor() as harbor:
            Worker(harbor, **options).drain_sync()

    return run
