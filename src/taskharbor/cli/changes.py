"""The options of commands that change jobs which wait, and the command that changes many."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from taskharbor.cli.confirming import yes_option
from taskharbor.cli.filters import act_on_all, dry_run_option, job_filters, named
from taskharbor.cli.parameters import duration, instant
from taskharbor.cli.session import Session, with_session

# Presets, as their names are written here; and no policy at all.
POLICIES = (
    *("default", "full_jitter", "conservative", "aggressive", "standard"),
    *("network", "external_api", "database", "email", "schedule", "none"),
)

_OPTIONS = (
    click.option("--priority", type=int, help="From -100 to 100; higher runs first."),
    click.option("--run-at", type=instant, metavar="ISO8601", help="Not before this time."),
    click.option(
        "--expires-at", type=instant, metavar="ISO8601", help="Cancel it if it has not begun by then."
    ),
    click.option("--expires-in", type=duration, help="Cancel it if it has not begun after this much time."),
    click.option("--max-attempts", type=int, help="The failure that is final."),
    click.option("--max-retries", type=int, help="The same, counted without the first attempt."),
    click.option("--timeout", type=duration, help="How long one attempt may take."),
    click.option(
        "--retry",
        type=click.Choice([*POLICIES, "declared"], case_sensitive=False),
        metavar="PRESET|none|declared",
        help=f"Its own retry policy: {', '.join(POLICIES[:-1])}; none for no retries; declared for the code's.",
    ),
)
_NAMES = ("priority", "run_at", "expires_at", "expires_in", "max_attempts", "max_retries", "timeout")


def with_changes(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options, and call the command with those that were given, as `changes`."""

    @wraps(command)
    def with_options(*args: Any, retry: str | None, **others: Any) -> Any:
        given = {name: others.pop(name) for name in _NAMES}
        changes = {name: value for name, value in given.items() if value is not None}
        if retry is not None:
            changes["retry"] = _policy(retry)
        return command(*args, changes=changes, **others)

    for option in reversed(_OPTIONS):
        with_options = option(with_options)
    return with_options


@click.command("update-all")
@job_filters
@with_changes
@click.option("--set-tag", "tags", multiple=True, help="Replace their tags; may be given several times.")
@click.option("--no-tags", is_flag=True, help="Remove their tags.")
@dry_run_option
@yes_option
@with_session
def update_all(
    session: Session,
    /,
    changes: dict[str, Any],
    tags: tuple[str, ...],
    no_tags: bool,
    dry_run: bool,
    yes: bool,
    **where: Any,
) -> None:
    """Change every job that matches and is neither running nor finished, but no schedule.

    Options that are left out do not change. A new retry policy brings its limit, unless one is given as well.

    \b
    Examples:
      taskharbor update-all --task mail:send --timeout 30s --dry-run
      taskharbor update-all --queue mail --retry email --max-attempts 20 --yes
    """
    if tags and no_tags:
        raise click.UsageError("--set-tag and --no-tags contradict each other; give one of them")
    if tags or no_tags:
        changes["tags"] = list(tags)
    if not changes:
        raise click.UsageError("say what to change, for example --priority 9")
    act_on_all(
        session,
        "change",
        "changed",
        lambda harbor, dry: harbor.jobs.aupdate_all(dry_run=dry, **where, **changes),
        named(where),
        dry_run=dry_run,
        yes=yes,
        where=where,
    )


def _policy(name: str) -> Any:
    from taskharbor import presets

    return name if name == "declared" else None if name == "none" else presets.named(name)
