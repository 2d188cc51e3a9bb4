"""`manage.py harbor …`: the command line of TaskHarbor, for the jobs of this project."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError

# A handler in a thread may hold a connection to Django's database, and PostgreSQL has a hundred by default.
CONCURRENCY = 10
DEFAULTS = {name: {"concurrency": CONCURRENCY} for name in ("worker", "dev")}
APP = "taskharbor.integrations.django.app"


class Command(BaseCommand):  # type: ignore[misc]
    help = "Run a command of TaskHarbor for this project: worker, list, dlq, why, serve and so on."

    def run_from_argv(self, argv: list[str]) -> None:
        """Hand the arguments over as they are: TaskHarbor's own options, not Django's."""
        self.run(f"{os.path.basename(argv[0])} {argv[1]}", argv[2:])

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("arguments", nargs="*")

    def handle(self, *args: Any, **options: Any) -> None:
        """For `call_command("harbor", "list")`."""
        self.run("manage.py harbor", [*args, *options.get("arguments", [])])

    def run(self, program: str, arguments: list[str]) -> None:
        from taskharbor.cli.entry import cli

        backend, rest = _backend_in(arguments)
        os.environ["TASKHARBOR_APP"] = f"{APP}:{'harbor' if backend is None else f'backends.{backend}'}"
        _let_children_import()
        cli(rest, prog_name=program, default_map=DEFAULTS)


def _backend_in(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Take `--backend NAME` from the beginning of the arguments."""
    if not arguments or not arguments[0].startswith("--backend"):
        return None, arguments
    name, equals, value = arguments[0].partition("=")
    rest = arguments[1:]
    if not equals and rest:
        value, rest = rest[0], rest[1:]
    if name != "--backend" or not value.isidentifier():
        raise CommandError(
            "--backend takes the name of a backend in TASKS: manage.py harbor --backend NAME worker"
        )
    return value, rest


def _let_children_import() -> None:
    """Put the folder of manage.py on the path of the processes that a worker starts."""
    folder = os.path.dirname(os.path.abspath(sys.argv[0]))
    known = os.environ.get("PYTHONPATH")
    if os.path.basename(sys.argv[0]) == "manage.py" and folder not in (known or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = folder if not known else f"{folder}{os.pathsep}{known}"
