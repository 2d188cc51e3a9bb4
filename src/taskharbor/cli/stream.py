"""`taskharbor stream`: execute the messages of a Kafka topic."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

import click
from click.core import ParameterSource

from taskharbor.cli.session import Session, with_session
from taskharbor.cli.work_options import WorkOptions, work_options

LEASE_SECONDS = 30.0  # of the jobs that failed messages become


@click.command
@click.option(
    "--brokers",
    required=True,
    metavar="HOST:PORT,…",
    envvar="TASKHARBOR_BROKERS",
    show_envvar=True,
    help="Where the brokers are.",
)
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
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the Kafka client, such as security.protocol=SASL_SSL; may be given several times.",
)
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
    if importlib.util.find_spec("confluent_kafka") is None:
        raise click.ClickException(
            "streams need the Kafka client; install it with: pip install 'taskharbor[kafka]'"
        )
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
