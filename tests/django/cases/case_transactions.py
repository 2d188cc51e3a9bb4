"""Enqueueing is part of Django's transaction, without on_commit."""

from __future__ import annotations

import os

import pytest
from django.db import connection, transaction
from shop import tasks
from shop.models import Order

from taskharbor.integrations.django import get_harbor
from taskharbor.integrations.django.framework import TaskResultDoesNotExist


def _states() -> dict[str, int]:
    """As other processes see it: by a connection of the harbor's own."""
    with get_harbor() as harbor:
        return {str(state): count for state, count in harbor.jobs.counts().items() if count}


def test_job_exists_for_others_once_the_block_commits():
    with transaction.atomic():
        order = Order.objects.create(name="a")
        result = tasks.ship.enqueue(order.pk)
        result.refresh()  # on the same connection, which sees its own writes
        assert result.status == "READY"
        assert _states() == {}
    assert _states() == {"ready": 1}


def test_rolled_back_block_leaves_no_job():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        result = tasks.ship.enqueue(Order.objects.create(name="a").pk)
        raise ZeroDivisionError
    assert _states() == {}
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_rolled_back_savepoint_takes_only_its_own_job_along():
    with transaction.atomic():
        kept = tasks.add.enqueue(1)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            lost = tasks.add.enqueue(2)
            raise ZeroDivisionError
    kept.refresh()
    with pytest.raises(TaskResultDoesNotExist):
        lost.refresh()
    assert _states() == {"ready": 1}


def test_refused_task_leaves_the_transaction_usable():
    with transaction.atomic():
        with pytest.raises(TypeError):
            tasks.note.enqueue(object())
        order = Order.objects.create(name="goes on")
    assert Order.objects.filter(pk=order.pk).exists()


def test_enqueue_outside_of_a_block_is_committed_and_leaves_autocommit_on():
    result = tasks.add.enqueue(1)
    assert connection.get_autocommit()
    assert not connection.in_atomic_block
    if connection.vendor == "sqlite":
        assert not connection.connection.in_transaction
    assert _states() == {"ready": 1}
    result.refresh()


def test_web_process_opens_no_connection_but_djangos():
    get_harbor().close()
    connection.ensure_connection()
    before = _opened()
    result = tasks.add.enqueue(1)
    result.refresh()
    assert _opened() == before


def _opened() -> int:
    """How many connections there are to the database."""
    if connection.vendor == "sqlite":
        opened = [os.path.realpath(each.path) for each in os.scandir("/proc/self/fd")]
        return opened.count(connection.settings_dict["NAME"])
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return cursor.fetchone()[0]
