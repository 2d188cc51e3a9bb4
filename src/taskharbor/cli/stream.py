"""`taskharbor stream`: execute the messages of a Kafka topic."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

import click
from click.core import ParameterSource

from taskharbor.cli.groups import share
from taskharbor.cli.parameters import duration
from taskharbor.cli.session import Session, with_session
from taskharbor.cli.work_options import WorkOptions, work_options
from taskharbor.codec import counted

LEASE_SECONDS = 30.0  # of the jobs that failed messages become

brokers_option = click.option(
    "--brokers",
    required=True,
    metavar="HOST:PORT,…",
    envvar="TASKHARBOR_BROKERS",
    show_envvar=True,
    help="Where the brokers are.",
)
settings_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the Kafka client, such as security.protocol=SASL_SSL; may be given several times.",
)


class WorkerOrCommand(click.Group):
    """A worker with options of its own, unless the first word names one of the commands."""

    allow_extra_args = False
    allow_interspersed_args = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] in self.commands:
            ctx.args = list(args)
            return ctx.args
        return click.Command.parse_args(self, ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        if not ctx.args:
            return click.Command.invoke(self, ctx)
        name, *rest = ctx.args
        command = self.commands[name]
        with command.make_context(name, rest, parent=ctx) as context:
            return command.invoke(context)


@click.group(cls=WorkerOrCommand, invoke_without_command=True)
@brokers_option
@click.option("--topic", default="tasks", show_default=True, help="The topic to read.")
@click.option("--group", required=True, help="The consumer group; its members share the topic's partitions.")
@click.option(
    "--order",
    type=click.Choice(["none", "key", "partition"]),
    default="none",
    show_default=True,
    help="Which messages run one after the other: none of them, those of one key, or those of one partition.",
)
@click.option(
    "--on-dead",
    type=click.Choice(["next", "hold"]),
    default="next",
    show_default=True,
    help="With an order: what a dead message does to those behind it. It lets the next one run, or holds them until an "
    "operator requeues, discards or deletes it.",
)
@click.option(
    "--no-retries",
    is_flag=True,
    help="Leave the queue stream:TOPIC, where failed messages are retried, to other workers.",
)
@click.option(
    "--ingest",
    is_flag=True,
    help="Store each message as one job and execute none: `taskharbor worker` does.",
)
@click.option(
    "--queue",
    help="With --ingest: the queue of the jobs.  [default: the queue that the task declares]",
)
@click.option(
    "--retries",
    type=click.Choice(["store", "topics"]),
    default="store",
    show_default=True,
    help="Where failed messages wait: in the store, or in retry topics of the brokers.",
)
@click.option("--create-topic", is_flag=True, help="Create the topic if it is missing.")
@click.option(
    "--no-create-topics",
    is_flag=True,
    help="Create neither the dead-letter topic nor retry topics; end if one is missing.",
)
@settings_option
@work_options
@with_session
def stream(
    session: Session,
    /,
    brokers: str,
    topic: str,
    group: str,
    order: Literal["none", "key", "partition"],
    on_dead: Literal["next", "hold"],
    no_retries: bool,
    ingest: bool,
    queue: str | None,
    retries: str,
    create_topic: bool,
    no_create_topics: bool,
    settings: tuple[str, ...],
    **given: Any,
) -> None:
    """Execute the messages of a Kafka or Redpanda topic.

    A message that fails becomes a job of the store, in the queue stream:TOPIC, and is retried there. With --retries
    topics it waits in retry topics of the brokers instead, and no store is involved. SIGTERM or SIGINT
    (Ctrl-C) lets running handlers finish; a second one stops the worker at once, and unfinished messages come again.

    With --processes a supervisor keeps that many processes running, each a static member of the group. When one
    dies, its successor takes its partitions over, and the messages that it had begun go to the store.

    \b
    Examples:
      taskharbor stream -A app:harbor --brokers localhost:9092 --topic tasks --group mailers
      taskharbor stream -A app:harbor --brokers kafka:9092 --group mailers --processes 4
      taskharbor stream -A app:harbor --brokers kafka:9092 --group mailers --set security.protocol=SSL
      taskharbor stream -A app:harbor --brokers localhost:9092 --group mailers --ingest
    """
    _require_client()
    from taskharbor.streams.topic_names import checked_topic

    checked_topic(topic)
    options = WorkOptions(**given)
    if ingest:
        _refuse_unused()
    elif queue is not None:
        raise click.UsageError(f"--queue is for --ingest; messages that fail become jobs of stream:{topic}")
    config = options.prepare(
        session,
        lease_seconds=LEASE_SECONDS,
        queues=[f"stream:{topic}"],  # that other workers see it serve
        stream={
            "brokers": brokers,
            "topic": topic,
            "group": group,
            "retries": retries,
            "order": order,
            "on_dead": on_dead,
            "serves_retries": not no_retries,
            "creates_topic": create_topic,
            "creates_own_topics": not no_create_topics,
            "settings": dict(_setting(each) for each in settings),
        },
    )
    if ingest:
        from taskharbor.streams import StreamWorker

        with session.open(create=True) as harbor:
            StreamWorker(
                harbor,
                brokers=brokers,
                topic=topic,
                group=group,
                creates_topic=create_topic,
                settings=dict(_setting(each) for each in settings),
                ingest=True,
                queue=queue,
            ).run_sync()
        return
    if options.processes is not None:
        options.supervise(session, config)
        return
    from taskharbor.cli.worker import work_here

    work_here(session, config, options.health_file, options.health_port, options.metrics())


_OF_EXECUTING = ({*WorkOptions.__struct_fields__} - {"include", "log_format", "log_level"}) | {
    "no_retries",
    "order",
    "on_dead",
}


def _refuse_unused() -> None:
    """Refuse options that say how messages are executed, which --ingest leaves to others."""
    context = click.get_current_context()
    for name in sorted(_OF_EXECUTING):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{name.replace('_', '-')} cannot go with --ingest, which executes nothing: "
                "give it to the worker that executes the jobs"
            )


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"a setting looks like security.protocol=SSL, not {text!r}")
    return name, value


def _require_client() -> None:
    if importlib.util.find_spec("confluent_kafka") is None:
        raise click.ClickException(
            "streams need the Kafka client; install it with: pip install 'taskharbor[kafka]'"
        )


@stream.command
@click.option("--from", "topic", required=True, metavar="TOPIC", help="The dead-letter topic.")
@click.option("--group", metavar="FINGERPRINT", help="Only messages that died of this cause; see --dry-run.")
@click.option(
    "--brake",
    type=share,
    default="20%",
    show_default=True,
    metavar="SHARE",
    help="Stop if more than this share of a slice comes back dead for the same cause.",
)
@click.option(
    "--quiet-seconds",
    type=duration,
    default="10",
    show_default=True,
    help="How long a slice is watched after its messages were executed.",
)
@click.option("--dry-run", is_flag=True, help="Count the messages by cause, and send nothing.")
@brokers_option
@settings_option
@with_session
def replay(
    session: Session,
    /,
    topic: str,
    group: str | None,
    brake: float,
    quiet_seconds: float,
    dry_run: bool,
    brokers: str,
    settings: tuple[str, ...],
) -> None:
    """Send the messages of a dead-letter topic back to the topics that they came from.

    It sends them in slices of 1, 10, 100 and then 1,000, with their attempts cleared. After each slice it watches
    the dead-letter topic, and stops if more than the share came back dead for the same cause. Started again, it goes
    on where it was. It skips messages of at_most_once tasks. Dead jobs of a store are replayed by
    `taskharbor dlq requeue-all --brake`.

    \b
    Examples:
      taskharbor stream replay --from tasks-dlq --brokers localhost:9092 --dry-run
      taskharbor stream replay --from tasks-dlq --group 3f9c2a7be01d4c55 --brake 20% --brokers localhost:9092
    """
    _require_client()
    from taskharbor.streams import TopicReplay

    screen = session.screen
    work = TopicReplay(
        brokers,
        topic,
        fingerprint=group,
        brake=brake,
        quiet_seconds=quiet_seconds,
        settings=dict(_setting(each) for each in settings),
        tell=screen.note,
    )
    if dry_run:
        causes = work.count()
        if screen.as_json:
            screen.document({"messages": sum(causes.values()), "causes": causes})
        else:
            screen.table(("CAUSE", "MESSAGES"), list(causes.items()))
        return
    done = work.run()
    if screen.as_json:
        screen.document(done)
        return
    others = sum(done.failed_other.values())
    screen.line(
        f"{counted(done.sent, 'message')} sent back, {done.failed_same:,} dead again for the same cause, "
        f"{others:,} for another; {done.skipped:,} skipped"
        + ("; stopped by the brake" if done.stopped else "")
    )
