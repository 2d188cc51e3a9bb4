"""`taskharbor stream`: execute the messages of a Kafka topic."""

from __future__ import annotations

from typing import Literal

import click

from taskharbor.cli.changes import POLICIES
from taskharbor.cli.parameters import duration
from taskharbor.cli.session import Session, with_session
from taskharbor.cli.worker import LEVELS


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
    "--concurrency", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Messages at once."
)
@click.option(
    "--retry",
    type=click.Choice(POLICIES, case_sensitive=False),
    metavar="PRESET|none",
    help="The policy of tasks without one, as for `taskharbor worker`.  [default: the application's]",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(0, 10_000),
    metavar="N",
    help="Limit the failures of a message, whatever it asks for; 0 removes the limit.  [default: the policy's]",
)
@click.option(
    "--grace-seconds",
    type=duration,
    default="7",
    show_default=True,
    help="How long running handlers may take to finish at a shutdown.",
)
@click.option(
    "--no-retries",
    is_flag=True,
    help="Leave the queue stream:TOPIC, where failed messages are retried, to other workers.",
)
@click.option("--create-topic", is_flag=True, help="Create the topic if it is missing.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the Kafka client, such as security.protocol=SASL_SSL; may be given several times.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="How log lines look, on standard error.  [default: text]",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@with_session
def stream(
    session: Session,
    brokers: str,
    topic: str,
    group: str,
    concurrency: int,
    retry: str | None,
    max_attempts: int | None,
    grace_seconds: float,
    no_retries: bool,
    create_topic: bool,
    settings: tuple[str, ...],
    log_format: Literal["text", "json"] | None,
    log_level: str,
) -> None:
    """Execute the messages of a Kafka or Redpanda topic.

    A message that fails becomes a job of the store, in the queue stream:TOPIC, and is retried there. SIGTERM or SIGINT
    (Ctrl-C) lets running handlers finish; a second one stops the worker at once, and unfinished messages come again.

    \b
    Examples:
      taskharbor stream -A app:harbor --brokers localhost:9092 --topic tasks --group mailers
      taskharbor stream -A app:harbor --brokers kafka:9092 --group mailers --set security.protocol=SSL
    """
    from taskharbor.telemetry import logs

    chosen = log_format or ("json" if session.screen.as_json else "text")
    logs.configure(chosen, log_level)
    with session.open(create=True) as harbor:
        from taskharbor.worker.supervisor.child_main import retry_of

        policy = retry_of(harbor, retry, max_attempts)
        try:
            from taskharbor.streams import StreamWorker
        except ModuleNotFoundError as error:
            raise click.ClickException(
                "streams need the Kafka client; install it with: pip install 'taskharbor[kafka]'"
            ) from error
        StreamWorker(
            harbor,
            brokers=brokers,
            topic=topic,
            group=group,
            concurrency=concurrency,
            retry=policy,
            serves_retries=not no_retries,
            creates_topic=create_topic,
            grace_seconds=grace_seconds,
            settings=dict(_setting(each) for each in settings),
        ).run_sync()


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"a setting looks like security.protocol=SSL, not {text!r}")
    return name, value
