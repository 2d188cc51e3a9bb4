"""Tasks of every kind that Django has. `seen` is what they leave behind in their process."""

from __future__ import annotations

from typing import Any

from django.db import connection, connections
from django.db.models import F

from shop.models import Order
from taskharbor.integrations.django import task

seen: list[Any] = []


@task
def add(a: int, b: int = 1) -> int:
    return a + b


@task
def gather(*args: Any, **kwargs: Any) -> list[Any]:
    return [args, kwargs]


@task
async def double(number: int) -> int:
    return number * 2


@task(queue_name="mail", takes_context=True)
def send(context: Any, name: str) -> list[Any]:
    seen.append(name)
    return [context.attempt, context.task_result.id, name]


@task
def note(name: str) -> None:
    seen.append(name)


@task(backend="quick")
def fails(text: str) -> None:
    raise ValueError(text)


@task(backend="quick", takes_context=True)
def fails_once(context: Any) -> int:
    if context.attempt == 1:
        raise RuntimeError("the first time")
    return context.attempt


@task(backend="quick", takes_context=True)
async def fails_once_async(context: Any) -> list[Any]:
    if context.attempt == 1:
        raise RuntimeError("the first time")
    return [context.attempt, len(context.task_result.errors)]


@task
def unfit() -> Any:
    return object()


@task
def count_orders() -> int:
    seen.append(connections[connection.alias])  # that of this thread
    return Order.objects.count()


@task
async def acount_orders() -> int:
    from asgiref.sync import sync_to_async

    found = await Order.objects.acount()
    seen.append(await sync_to_async(lambda: connections[connection.alias])())
    return found


@task
def ship(order: int) -> None:
    Order.objects.filter(pk=order).update(sent=F("sent") + 1)
