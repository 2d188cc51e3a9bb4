"""Writes the parts of the documentation that the code itself knows.

    python docs/reference.py            # rewrite api.md, cli.md, and the generated parts of other pages
    python docs/reference.py --check    # only say which of them are out of date

`api.md` and `cli.md` are generated as a whole; in other pages what stands between
`<!-- generated: name -->` and `<!-- end -->` is. A test runs the check.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

import taskharbor
from taskharbor import clock, presets, schedule, testing
from taskharbor.cli import cli
from taskharbor.client.audit import Audit, AuditEntry, AuditPage
from taskharbor.client.dead_letters import DeadLetters
from taskharbor.client.holds import Hold, Holding
from taskharbor.client.jobs import JobPage, Jobs
from taskharbor.client.options import EnqueueOptions
from taskharbor.client.queues import Queue, Queues
from taskharbor.client.schedule import Schedule
from taskharbor.client.schedules import Schedules
from taskharbor.client.stats import Demand, Point, QueueDemand, Stats, Times
from taskharbor.client.workflows import Workflows
from taskharbor.conformance.chapters import CHAPTERS, SECOND_DRIVER_CHAPTERS
from taskharbor.copying import CopiedKind, CopyReport, copy_store
from taskharbor.deploying import DeploymentReport, Finding, check_deployment
from taskharbor.drivers.base import Driver, JobSource, Leasing
from taskharbor.drivers.capabilities import CAPABILITIES, Transactions
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.http import http_payload
from taskharbor.rules.retry import RetryPolicy
from taskharbor.rules.why_facts import AwaitedJob, Why, WhyCode, WhyFacts
from taskharbor.streams import StreamWorker, TopicReplay, TopicReplayed
from taskharbor.streams.producer import Published, Stream
from taskharbor.telemetry import logs, tracing
from taskharbor.telemetry.events import EVENTS
from taskharbor.telemetry.metrics import catalogue
from taskharbor.telemetry.metrics.catalogue import Source
from taskharbor.worker import Worker
from taskharbor.workflow import Composition, WorkflowJobs, WorkflowProgress

DOCS = Path(__file__).parent
GENERATED = re.compile(r"(<!-- generated: (?P<name>[a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)

# -- the Python interface ------------------------------------------------------------------------

# Members that other parts of TaskHarbor ask for, and that a user has no business with.
HIDDEN = {
    taskharbor.Event: {"about"},
    taskharbor.Task: {
        "new_job", "new_job_of", "validate", "decode_result",
        "declared_max_attempts", "declared_timeout", "declared_delivery", "declared_policy",
        "declared_failure_task",
        "is_isolated", "only_asked_to_end",
    },
    taskharbor.Signature: {"new_job"},
    Schedule: {"of"},
    Times: {"of"},
    AuditEntry: {"of"},
    schedule.Schedule: {"next_micros", "latest_micros"},
    clock.ManualClock: {"DEFAULT_START"},
    testing.TestingClock: {*vars(clock.ManualClock), "next_timer"},
    # What every driver has.
    testing.FailingStore: {*dir(MemoryDriver), *dir(Transactions)},
}  # fmt: skip

OPTIONS = {
    "queue": "The queue the job waits in. Default: `default`.",
    "run_at": "An aware datetime; the job is not claimed before it.",
    "delay": "Seconds from the store's now, instead of `run_at`.",
    "priority": "From -100 to 100; higher runs first. Default: 0.",
    "max_attempts": "The failure that is final. At most 10,000; 0 leaves the limit to the policy. "
    "The number travels with the job.",
    "max_retries": "The same limit without the first attempt: `max_retries=4` is `max_attempts=5`.",
    "timeout": "Seconds that one attempt may take. Default: no limit.",
    "expires_at": "An aware datetime; a run that has not begun by then is cancelled.",
    "expires_in": "Seconds from the store's now, instead of `expires_at`.",
    "idempotency_key": "At most one job of the queue has it, for as long as that job is kept.",
    "delivery": '`"at_least_once"` (the default) or `"at_most_once"`.',
    "retry": "A `RetryPolicy`, or None for no retries. A declared one "
    "[follows the code](retries.md#what-travels-with-the-job-and-what-follows-the-code) of the worker that sees the "
    "failure; one given to a job is stored with it.",
    "correlation_id": "Kept through every retry and by children; on the log lines of the job.",
    "tags": "Up to 32 labels to find the job by.",
    "meta": "A small map of names to text that travels with the job, and that its children inherit. "
    "Operators see it: no secrets.",
    "failure_task": "A signature such as `alert.s()` whose job is "
    "[enqueued with the death](retries.md#a-task-for-dead-jobs) of this one; None for none although the "
    "task declares one.",
    "id": "The job's own id, a UUID. Enqueueing it again gives the same job.",
}

SECTIONS: dict[str, list[Any]] = {
    "The harbor": [taskharbor.Harbor, taskharbor.PayloadCodec],
    "Tasks": [taskharbor.Task, taskharbor.Signature],
    "Jobs": [taskharbor.Job, taskharbor.Attempt, taskharbor.Step, taskharbor.Progress],
    "Workflows": [
        taskharbor.chain, taskharbor.group, taskharbor.chord, Composition,
        taskharbor.Workflow, WorkflowJobs, WorkflowProgress, taskharbor.WorkflowState,
    ],
    "Looking after jobs": [
        Jobs, DeadLetters, Queues, Holding, Workflows,
        JobPage, Queue, Hold, taskharbor.JobFilter, Why, WhyCode, WhyFacts, AwaitedJob,
    ],
    "Who did what": [Audit, AuditEntry, AuditPage],
    "Rates": [Stats, Point, Times, Demand, QueueDemand],
    "Schedules": [Schedules, Schedule, schedule.parse, schedule.every, schedule.Schedule],
    "Workers": [Worker],
    "Streams": [StreamWorker, Stream, Published, TopicReplay, TopicReplayed],
    "Inside a handler": [
        taskharbor.Context, taskharbor.current_context, taskharbor.RetryAfter, taskharbor.Unrecoverable,
        taskharbor.StopRequested,
    ],
    "HTTP jobs": [http_payload],
    "Retry policies": [
        taskharbor.RetryPolicy, taskharbor.Failure, taskharbor.Decision, taskharbor.RetryMetrics,
    ],
    "Events": [taskharbor.Event],
    "Words": [taskharbor.State, taskharbor.AttemptStatus, taskharbor.Delivery, taskharbor.Reason],
    "Errors": [
        taskharbor.TaskHarborError, taskharbor.ConfigurationError, taskharbor.MissingCapability,
        taskharbor.PayloadError, taskharbor.PayloadTooLarge,
        taskharbor.JobNotFound, taskharbor.JobConflict, taskharbor.JobFailed, taskharbor.JobCancelled,
        taskharbor.LeaseLost, taskharbor.WorkflowError, taskharbor.WorkflowNotFound, taskharbor.WorkflowStuck,
        taskharbor.WorkflowCancelled,
        taskharbor.StoreError, taskharbor.StoreUnavailable, taskharbor.AccessDenied, taskharbor.SchemaError,
        taskharbor.StreamError, taskharbor.RemoteError, taskharbor.UnresponsiveHandler,
    ],
    "Tracing": [tracing.instrument],
    "Logs": [logs.configure, logs.KeyValueFormatter, logs.JsonFormatter],
    "Before a deployment": [check_deployment, DeploymentReport, Finding],
    "Copying a store": [copy_store, CopyReport, CopiedKind],
    "Tests of an application": [
        testing.assert_enqueued, testing.assert_not_enqueued, testing.enqueued, testing.make_context, testing.outage,
        testing.staged, testing.Stage, testing.TestingClock, testing.Drain, testing.Ran, testing.RunInline,
        testing.HandlerContext, testing.HandlersWait, testing.FailingStore, clock.ManualClock,
    ],
    "Writing a driver": [Leasing, JobSource, Driver, *CAPABILITIES],
}  # fmt: skip

# The names of an enumeration, or of events, as a type of its own.
NAME_TYPES: dict[type, str] = {
    taskharbor.State: "StateName",
    taskharbor.Reason: "ReasonName",
    taskharbor.Event: "EventName",
}

ENTRANCES: dict[type, str] = {
    Jobs: "harbor.jobs",
    DeadLetters: "harbor.dlq",
    Queues: "harbor.queues",
    Audit: "harbor.audit",
    Holding: "harbor.holds",
    Stats: "harbor.stats",
    Schedules: "harbor.schedules",
    Workflows: "harbor.workflows",
}


API_PREFACE = """\
Generated from the code by `docs/reference.py`. What is listed in `taskharbor.__all__` is imported from `taskharbor`;
anything else says where it comes from.

Every method that talks to the store has two forms: `harbor.jobs.get(…)` for code without an event loop, and
`await harbor.jobs.aget(…)` for code inside one. Only the first is listed; where there is a second, its name is given.
"""
OPTIONS_PREFACE = """\
What `harbor.task(…)`, `task.using(…)` and `harbor.enqueue(…)` take. A declaration takes those that make sense for
every job of the task: not `run_at`, `delay`, `expires_at`, `expires_in`, `idempotency_key`, `correlation_id`,
`id`. Declared options are stored with each job when it is enqueued, except `retry`, which follows the worker's code.
"""
# Where the signature in the source speaks to a type checker, not to a person.
SIGNATURES = {
    taskharbor.Harbor.task: "(*, name=None, aliases=(), parameter_aliases=None, isolation=None, schedule=None, "
    "timezone='UTC', misfire='run_once', misfire_grace=60.0, dead_letter=False, **options) -> Task",
}


def api() -> str:
    parts = ["# Python interface\n", API_PREFACE]
    for title, things in SECTIONS.items():
        parts.append(f"## {title}\n")
        for thing in things:
            parts += _callable(thing) if inspect.isfunction(thing) else _class(thing)
            if thing is taskharbor.Task:
                parts += _options()
    parts.append("## Presets\n")
    parts.append(
        "`taskharbor.presets` holds the policies and lists of error texts of [retries](retries.md#presets).\n"
    )
    return "\n".join(parts)


def _options() -> Iterator[str]:
    yield "### Options\n"
    yield OPTIONS_PREFACE
    yield "| option | meaning |"
    yield "| --- | --- |"
    for name in EnqueueOptions.__annotations__:
        yield f"| `{name}` | {OPTIONS[name]} |"
    yield ""


def _callable(function: Callable[..., Any]) -> Iterator[str]:
    yield f"### `{function.__name__}`\n"
    yield from _origin(function)
    yield f"`{function.__name__}{signature(function)}`\n"
    yield f"{_prose(function.__doc__)}\n"


def _class(cls: type) -> Iterator[str]:
    yield f"### `{ENTRANCES.get(cls, cls.__name__)}`\n"
    yield from _origin(cls)
    if issubclass(cls, BaseException):
        bases = [base.__name__ for base in cls.__bases__ if base not in (Exception, object)]
        yield (
            f"{_prose(cls.__doc__)}"
            + (f" (A {' and a '.join(f'`{base}`' for base in bases)}.)" if bases else "")
            + "\n"
        )
        return
    if (
        not _is_record(cls)
        and "__init__" in vars(cls)
        and cls in (taskharbor.Harbor, Worker, RetryPolicy, clock.ManualClock)
    ):
        yield f"`{cls.__name__}{signature(cls.__init__)}`\n"
    if cls not in ENTRANCES:
        yield f"{_prose(cls.__doc__)}\n"
    if cls in NAME_TYPES:
        names = get_args(getattr(taskharbor, NAME_TYPES[cls]))
        yield f"Its names as a type, `{NAME_TYPES[cls]}`: {', '.join(f'`{name}`' for name in names)}.\n"
    if issubclass(cls, Enum):
        if cls not in NAME_TYPES:
            yield ", ".join(f"`{member.value}`" for member in cls) + "\n"
        return
    if _is_record(cls):
        yield "Fields: " + ", ".join(f"`{name}: {hint}`" for name, hint in _fields(cls)) + ".\n"
    yield from _members(cls)


def _origin(thing: Any) -> Iterator[str]:
    if thing.__name__ not in taskharbor.__all__ and thing not in ENTRANCES:
        yield f"From `{thing.__module__}`.\n"


def _is_record(cls: type) -> bool:
    return issubclass(cls, msgspec.Struct) or cls is RetryPolicy


def _fields(cls: type) -> Iterator[tuple[str, str]]:
    for name, hint in inspect.get_annotations(cls).items():
        if not name.startswith("_"):
            yield name, str(hint)


def members(cls: type) -> dict[str, Any]:
    """The public members of a class, those of its bases in TaskHarbor included, in the order of the source."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("taskharbor") or base is cls:
            for name, value in vars(base).items():
                is_member = isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(
                    value
                )
                if is_member and not name.startswith("_") and name not in HIDDEN.get(cls, ()):
                    found.setdefault(name, value)
    return found


def _members(cls: type) -> Iterator[str]:
    all_members = members(cls)
    plain: list[str] = []
    lines: list[str] = []
    for name, member in all_members.items():
        if name.startswith("a") and name[1:] in all_members:
            continue  # the asynchronous form of one that is listed
        if isinstance(member, property):
            described = _prose(member.__doc__, one_line=True)
            kind = str(inspect.get_annotations(member.fget).get("return", "")) if member.fget else ""
            if described:
                lines.append(f"- `{name}: {kind}` {described}")
            else:
                plain.append(f"`{name}: {kind}`")
            continue
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        twin = f" Asynchronous: `a{name}`." if f"a{name}" in all_members else ""
        keyword = "await " if inspect.iscoroutinefunction(function) else ""
        described = _prose(function.__doc__, one_line=True)
        lines.append(f"- `{keyword}{name}{signature(function)}` {described}{twin}".rstrip())
    if plain:
        yield "Properties: " + ", ".join(plain) + ".\n"
    if lines:
        yield "\n".join(lines) + "\n"


def signature(function: Callable[..., Any]) -> str:
    if function in SIGNATURES:
        return SIGNATURES[function]
    shown: list[str] = []
    starred = False
    found = inspect.signature(function)
    parameters = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        shown.append(_parameter(parameter))
    returns = found.return_annotation
    arrow = "" if returns in (found.empty, "None", None) else f" -> {_hint(returns)}"
    return f"({', '.join(shown)}){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    stars = "**" if parameter.kind is parameter.VAR_KEYWORD else stars
    hint = "" if parameter.annotation is parameter.empty else f": {_hint(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return f"{stars}{parameter.name}{hint}"
    return f"{parameter.name}{hint}{' = ' if hint else '='}{_default(parameter.default)}"


def _default(value: object) -> str:
    named = {
        id(policy): f"presets.{name}"
        for name, policy in vars(presets).items()
        if isinstance(policy, RetryPolicy)
    }
    if id(value) in named:
        return named[id(value)]
    if callable(value):
        return getattr(value, "__name__", repr(value))
    if value == clock.ManualClock.DEFAULT_START:
        return "DEFAULT_START"
    return repr(value)


def _hint(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return re.sub(r"\b(builtins|typing)\.", "", text)


def _prose(docstring: str | None, *, one_line: bool = False) -> str:
    """A docstring as Markdown: what is indented in it is code."""
    text = inspect.cleandoc(re.sub(r"\(The asynchronous form is `\w+`\.\)\s*$", "", docstring or ""))
    paragraphs = [p for p in text.split("\n\n") if p.strip()]
    if one_line:
        return " ".join(" ".join(p.split()) for p in paragraphs if not p.startswith("    "))
    return "\n\n".join(
        f"```text\n{inspect.cleandoc(p)}\n```" if p.startswith("    ") else p for p in paragraphs
    )


# -- the command line ----------------------------------------------------------------------------


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    """Every command and group by its words, in the order of the help."""
    found: dict[tuple[str, ...], click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        found[(*path, name)] = command
        if isinstance(command, click.Group):
            found |= commands(command, (*path, name))
    return found


COMMON_OPTIONS = [
    parameter
    for parameter in commands()["stats",].params
    if isinstance(parameter, click.Option) and parameter.name in ("app", "url", "as_json")
]


def command_line() -> str:
    parts = [
        "# Command line\n",
        "Generated from the commands' own help by `docs/reference.py`. A tour is in [operating](operating.md).\n",
        "`python -m taskharbor` is the same command.\n",
        *_help(cli),
        "Every command takes these; below they are left out.\n",
        *_table(COMMON_OPTIONS),
    ]
    for path, command in commands().items():
        parts.append(f"{'##' if len(path) == 1 else '###'} `taskharbor {' '.join(path)}`\n")
        parts += _usage(path, command)
        parts += _help(command)
        parts += _parameters(command)
    return "\n".join(parts)


def _usage(path: tuple[str, ...], command: click.Command) -> Iterator[str]:
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    if arguments:
        words = [f"{p.metavar or (p.name or '').upper()}{'…' if p.nargs == -1 else ''}" for p in arguments]
        yield f"`taskharbor {' '.join((*path, *words))} [OPTIONS]`\n"


def _help(command: click.Command) -> Iterator[str]:
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if not paragraph.startswith("\b"):
            yield f"{paragraph}\n"
            continue
        lines = [line.strip() for line in paragraph.strip("\b\n").splitlines()]
        examples = [f"$ {line}" for line in lines if line.startswith(("taskharbor ", "psql "))]
        if examples:
            yield "```console no-run\n" + "\n".join(examples) + "\n```\n"
        else:
            yield "```text\n" + "\n".join(lines) + "\n```\n"


def _parameters(command: click.Command) -> Iterator[str]:
    common = {option.name: _meaning(option) for option in COMMON_OPTIONS}
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    yield from _table([option for option in options if common.get(option.name) != _meaning(option)])


def _table(options: Sequence[click.Option]) -> Iterator[str]:
    if not options:
        return
    yield "| option | meaning |"
    yield "| --- | --- |"
    for option in options:
        spelling = ", ".join(f"`{spelled}`" for spelled in sorted(option.opts, key=len, reverse=True))
        value = "" if option.is_flag else f" {_value(option)}"
        yield f"| {spelling}{value} | {_meaning(option)} |"
    yield ""


def _value(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return " ".join(f"`{choice}`" for choice in option.type.choices)
    return option.metavar or {"integer range": "INTEGER"}.get(option.type.name, option.type.name).upper()


def _meaning(option: click.Option) -> str:
    text = re.sub(r"\s*\[(default|env var): ([^\]]*)\]", "", option.help or "")
    told = re.search(r"\[default: ([^\]]*)\]", option.help or "")
    env = re.search(r"\[env var: ([^\]]*)\]", option.help or "")
    extra = []
    if told:
        extra.append(f"Default: {told[1]}.")
    elif isinstance(option.default, str | int | float) and not option.is_flag:
        extra.append(f"Default: {option.default}.")
    if isinstance(option.envvar, str) or env:
        extra.append(f"Environment: `${option.envvar or (env and env[1])}`.")
    return " ".join([text, *extra]).strip()


# -- parts of other pages ------------------------------------------------------------------------


def preset_table() -> str:
    rows = ["| preset | max_attempts | initial | maximum | multiplier | jitter | errors |"]
    rows.append("| --- | --- | --- | --- | --- | --- | --- |")
    for name, policy in preset_policies().items():
        delays = (
            _seconds(policy.initial),
            _seconds(policy.maximum),
            f"{policy.multiplier:g}",
            _jitter(policy),
        )
        shown = ("", "", "", "") if policy.max_attempts == 1 else delays
        rows.append(f"| `{name}` | {policy.max_attempts} | {' | '.join(shown)} | {_classification(policy)} |")
    return "\n".join(rows) + "\n"


def preset_policies() -> Mapping[str, RetryPolicy]:
    return {name: policy for name, policy in vars(presets).items() if isinstance(policy, RetryPolicy)}


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    return f"{seconds / 60:g} min" if seconds >= 120 else f"{seconds:g} s"


def _jitter(policy: RetryPolicy) -> str:
    if policy.jitter is None:
        return "none"
    return "full" if policy.jitter == "full" else f"±{policy.jitter * 100:g} %"


def _classification(policy: RetryPolicy) -> str:
    if policy.max_attempts == 1:
        return "the first failure is final"
    if policy.retry_on:
        return f"retries only: {', '.join(map(str, policy.retry_on))}"
    return f"never: {', '.join(map(str, policy.never_retry_on))}" if policy.never_retry_on else "retries all"


def rules() -> str:
    lines: list[str] = []
    for chapter in (*CHAPTERS, *SECOND_DRIVER_CHAPTERS):
        names = [
            name.removeprefix("test_").replace("_", " ") for name in vars(chapter) if name.startswith("test_")
        ]
        lines.append(f"**{chapter.__name__}**\n")
        lines += [f"- {name}" for name in names]
        lines.append("")
    return "\n".join(lines)


# -- metrics -------------------------------------------------------------------------------------


def metric_tables() -> str:
    lines: list[str] = []
    for source, title in {
        Source.JOBS: "Counted by workers, for each queue and task",
        Source.PROCESS: "Counted by workers, without labels",
        Source.STORE: "Read from the store",
    }.items():
        lines += [f"**{title}**", "", "| name | type | labels | meaning |", "| --- | --- | --- | --- |"]
        for metric in catalogue.of(source):
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            name = f"{catalogue.PREFIX}{metric.exported}"
            lines.append(f"| `{name}` | {metric.kind} | {labels} | {metric.meaning} |")
        lines.append("")
    return "\n".join(lines)


# -- events --------------------------------------------------------------------------------------


def event_table() -> str:
    lines = ["| event | emitted by | when | further fields |", "| --- | --- | --- | --- |"]
    for kind in EVENTS:
        fields = [f"`{name}`" for name in kind.fields] + [f"(`{name}`)" for name in kind.sometimes]
        lines.append(f"| `{kind.name}` | {kind.emitted_by} | {kind.when} | {', '.join(fields)} |")
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {"api.md": api, "cli.md": command_line}
PARTS: dict[str, Callable[[], str]] = {
    "presets": preset_table,
    "rules": rules,
    "metrics": metric_tables,
    "events": event_table,
}


def current() -> dict[Path, str]:
    """Every page with something generated in it, as it should be."""
    wanted = {DOCS / name: make().rstrip("\n") + "\n" for name, make in PAGES.items()}
    for page in sorted(DOCS.glob("**/*.md")):
        text = page.read_text()
        if page not in wanted and GENERATED.search(text):
            wanted[page] = GENERATED.sub(lambda found: f"{found[1]}{PARTS[found['name']]()}{found[3]}", text)
    return wanted


def main() -> int:
    stale = {page: text for page, text in current().items() if not page.exists() or page.read_text() != text}
    for page, text in stale.items():
        if "--check" not in sys.argv:
            page.write_text(text)
        sys.stdout.write(
            f"{page.relative_to(DOCS.parent)} {'is out of date' if '--check' in sys.argv else 'written'}\n"
        )
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
