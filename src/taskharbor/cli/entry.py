"""The `taskharbor` command: which commands there are, and how their errors reach a person."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import click

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130  # as a shell says of a process that SIGINT ended
TRACEBACK_VARIABLE = "TASKHARBOR_TRACEBACK"  # for debugging TaskHarbor itself

COMMANDS = {
    "demo": "taskharbor.cli.demo.command:demo",
    "dev": "taskharbor.cli.dev:dev",
    "worker": "taskharbor.cli.worker:worker",
    "stream": "taskharbor.cli.stream:stream",
    "streams": "taskharbor.cli.streams:streams",
    "serve": "taskharbor.cli.serve:serve",
    "token": "taskharbor.cli.token:token",
    "enqueue": "taskharbor.cli.enqueue:enqueue",
    "list": "taskharbor.cli.jobs:list_jobs",
    "inspect": "taskharbor.cli.jobs:inspect",
    "why": "taskharbor.cli.why:why",
    "cancel": "taskharbor.cli.jobs:cancel",
    "cancel-all": "taskharbor.cli.jobs:cancel_all",
    "update-all": "taskharbor.cli.changes:update_all",
    "delete-all": "taskharbor.cli.jobs:delete_all",
    "job": "taskharbor.cli.job:job",
    "dlq": "taskharbor.cli.dlq:dlq",
    "schedule": "taskharbor.cli.schedules:schedule",
    "queue": "taskharbor.cli.queues:queue",
    "task": "taskharbor.cli.tasks:task",
    "workflow": "taskharbor.cli.workflows:workflow",
    "audit": "taskharbor.cli.audit:audit",
    "stats": "taskharbor.cli.stats:stats",
    "top": "taskharbor.cli.top.command:top",
    "prune": "taskharbor.cli.upkeep:prune",
    "migrate": "taskharbor.cli.upkeep:migrate",
    "deploy-check": "taskharbor.cli.deploy_check:deploy_check",
    "copy": "taskharbor.cli.copy:copy",
    "roles": "taskharbor.cli.roles:roles",
    "doctor": "taskharbor.cli.doctor:doctor",
}


class CommandLine(click.Group):
    """A group that imports a command when it is used, and prints each error as one line."""

    def __init__(self, *args: Any, lazy: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)  # in the order in which a new user needs them

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, name = self._lazy[cmd_name].partition(":")
        return cast(click.Command, getattr(importlib.import_module(module), name))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except (click.Abort, KeyboardInterrupt):
            _fail("interrupted", EXIT_INTERRUPTED)
        except CommandFailed as error:
            _fail(error.format_message(), error.code)
        except click.UsageError as error:
            _fail(_usage(error), error.exit_code)
        except click.ClickException as error:
            _fail(error.format_message(), error.exit_code)
        except BrokenPipeError:
            _leave_broken_pipe()
        except Exception as error:
            if os.environ.get(TRACEBACK_VARIABLE):
                raise
            _fail(message_of(error), EXIT_FAILED)
        # A command returns nothing; a number is what it gave to ctx.exit().
        sys.exit(code if isinstance(code, int) else 0)


def _usage(error: click.UsageError) -> str:
    message = error.format_message().rstrip(".")
    return f"{message} (see `{error.ctx.command_path} --help`)" if error.ctx is not None else message


class CommandFailed(click.ClickException):
    """An error that ends the command with its own exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def message_of(error: Exception) -> str:
    """Return the text of one of our own errors; anything else is unexpected, and shows its type."""
    from taskharbor.errors import TaskHarborError

    while isinstance(error, ExceptionGroup):  # from the parts of a worker: the first that failed
        error = error.exceptions[0]
    if isinstance(error, TaskHarborError | TimeoutError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error} (unexpected; {TRACEBACK_VARIABLE}=1 shows where)"


def _fail(message: str, code: int) -> NoReturn:
    from taskharbor.telemetry.logs import masked, one_line

    text = one_line(masked(" ".join(message.split())))
    try:
        click.echo(f"Error: {text}", err=True)
    except BrokenPipeError:
        _leave_broken_pipe()
    sys.exit(code)


def _leave_broken_pipe() -> NoReturn:
    """End quietly when the reader of our output is gone (`| head`), even when the interpreter flushes at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(devnull, stream.fileno())
    sys.exit(EXIT_FAILED)


@click.group(
    cls=CommandLine,
    lazy=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="taskharbor", prog_name="taskharbor")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Durable background jobs: run workers, enqueue jobs, look after them.

    Name your application with -A module:object (or $TASKHARBOR_APP), or just its store with --url
    (or $TASKHARBOR_URL). With neither, jobs are kept in ./taskharbor.db.

    \b
    Examples:
      taskharbor demo
      taskharbor worker -A app:harbor
      taskharbor enqueue email:send '{"to": "a@b.c"}' -A app:harbor
      taskharbor dlq list --url sqlite:///harbor.db
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def open_closed_streams() -> None:
    """Open the null device for each closed standard stream.

    A daemon may be started with closed streams. Then the next file that it opens, such as the store, would become its
    standard output, and everything printed would go into it.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one
            if getattr(sys, name) is None:
                setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", closefd=False))


def main() -> None:
    open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a letter that the terminal lacks is not a failure
    cli(prog_name="taskharbor")
