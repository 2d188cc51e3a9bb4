"""Asking before a command does what cannot be undone to many jobs."""

from __future__ import annotations

import sys

import click

yes_option = click.option(
    "--yes", is_flag=True, help="Do not ask; needed if standard input is not a terminal."
)


def confirm(verb: str, which: str) -> None:
    """Ask on a terminal, and end the command unless the answer is yes; elsewhere say that --yes is needed."""
    if not _is_terminal():
        raise click.UsageError(f"this {verb}s {which} for good: give --yes")
    click.confirm(f"{verb.capitalize()} {which} for good?", abort=True, err=True)


def _is_terminal() -> bool:
    return sys.stdin.isatty()
