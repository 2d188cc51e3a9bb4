"""`taskharbor task …`"""

from __future__ import annotations

from collections.abc import Collection
from shlex import quote
from typing import TYPE_CHECKING

import click

from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor


@click.group(no_args_is_help=False)
def task() -> None:
    """Hold and release the jobs of a task, and see which tasks the workers know.

    \b
    Example:
      taskharbor task list
    """


@task.command("list")
@with_session
def list_tasks(session: Session) -> None:
    """List the tasks that live workers know, and every task or tag that is held.

    \b
    Example:
      taskharbor task list --json
    """
    from taskharbor.views.tasks import tasks_of

    found = session.run(tasks_of)
    if session.screen.as_json:
        session.screen.document(found)
        return
    rows = [
        (each.name, each.kind, each.held, each.held_by, each.held_since, len(each.workers))
        for each in found.items
    ]
    session.screen.table(
        ("NAME", "KIND", "HELD", "BY", "SINCE", "WORKERS"), rows, empty="no live worker, and nothing is held"
    )


_of_tag = click.option("--tag", "is_tag", is_flag=True, help="NAME is a tag, not a task.")


@task.command("hold")
@click.argument("name")
@_of_tag
@with_session
def hold(session: Session, name: str, is_tag: bool) -> None:
    """Hold the jobs of the task NAME: no more of them start. Running jobs continue.

    \b
    Example:
      taskharbor task hold mail:send
    """
    changed, known = session.run(lambda harbor: _hold(harbor, name, is_tag), create=True)
    _tell(session, name, is_tag, held=True, text="held" if changed else "was held already")
    if known and name not in known:
        from difflib import get_close_matches

        close = get_close_matches(name, known, n=1)
        session.screen.note(
            f"no live worker knows the task {name}{f'; did you mean {close[0]}?' if close else '.'} "
            f"To take it back: taskharbor task release {quote(name)}{session.words}"
        )


@task.command("release")
@click.argument("name")
@_of_tag
@with_session
def release(session: Session, name: str, is_tag: bool) -> None:
    """Let the held jobs of the task NAME start again.

    \b
    Example:
      taskharbor task release mail:send
    """
    changed = session.run(lambda harbor: harbor.holds.arelease(**_named(name, is_tag)), create=True)
    was_not = f"no {'tag' if is_tag else 'task'} of this name was held; see `taskharbor task list`"
    _tell(session, name, is_tag, held=False, text="released" if changed else was_not)


async def _hold(harbor: Harbor, name: str, is_tag: bool) -> tuple[bool, Collection[str]]:
    """Whether that changed anything; and of a task, the tasks that are known."""
    changed = await harbor.holds.ahold(**_named(name, is_tag))
    return changed, () if is_tag else {*await harbor.holds.aknown_tasks(), *harbor.tasks}


def _named(name: str, is_tag: bool) -> dict[str, str]:
    return {"tag" if is_tag else "task": name}


def _tell(session: Session, name: str, is_tag: bool, *, held: bool, text: str) -> None:
    if session.screen.as_json:
        from taskharbor.drivers.contract.holds import HoldKind
        from taskharbor.views.tasks import HoldFlag

        kind = HoldKind.TAG if is_tag else HoldKind.TASK
        session.screen.document(HoldFlag(kind, name, held))
    else:
        session.screen.line(f"{name}: {text}")
