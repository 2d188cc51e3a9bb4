"""Text that a careless store breaks on comes back as it was given, or is refused before anything is stored.

On every store: names of queues, tasks and tags, keys, correlation ids, payloads, results, errors, progress.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import unicodedata
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskharbor import (
    ConfigurationError,
    Context,
    Harbor,
    JobFailed,
    PayloadError,
    RetryPolicy,
    State,
    Worker,
)
from taskharbor.codec import KEY_LIMIT, NAME_LIMIT, clean_text
from taskharbor.conformance.chapters.hostile import HOSTILE, label
from taskharbor.context import PROGRESS_MESSAGE_MAX
from taskharbor.worker.handlers.outcomes import ERROR_MAX

UNSTORABLE = ("nul \0 here", "\0", "lone \ud800 surrogate", "\udfff", "two \udc80\udc81")
TEXTS = (
    *HOSTILE,
    *UNSTORABLE,
    "",
    "\ufeff",
    "\u200d\u2066",
    "$$ $1 %(a)s {schema} :a @a",
    "x" * 10_240,
    "é" * 10_240,
)

# Every text that Python has, with what is dangerous more often than chance would have it.
any_text = st.text(st.one_of(st.characters(), st.sampled_from("'\"\\%${}?:;-\0\n\ud800"))) | st.sampled_from(
    TEXTS
)
on_a_shared_store = settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Shore:
    """A store, with a task that gives its text back in each of the ways that there are."""

    def __init__(self, harbor: Harbor) -> None:
        self.harbor = harbor

        @harbor.task(name="echo")
        def echo(text: str) -> str:
            return text

        @harbor.task(name="fail", max_attempts=1)
        def fail(parts: list[int]) -> None:
            raise RuntimeError(_text(parts))

        @harbor.task(name="report")
        async def report(ctx: Context, parts: list[int]) -> None:
            ctx.progress(0.5, _text(parts))
            # It is stored with the next batch, and nobody tells of that.
            while (await harbor.jobs.aget(ctx.job.id)).progress is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

        @harbor.task(name="give", max_attempts=1)
        def give(parts: list[int]) -> list[Any]:
            text = _text(parts)
            return [text, {text: 1}]

        self.echo, self.fail, self.report, self.give = echo, fail, report, give

    def total(self) -> int:
        return sum(self.harbor.jobs.counts().values())

    def drain(self) -> None:
        Worker(self.harbor).drain_sync()


def _text(parts: list[int]) -> str:
    """A text that no payload could carry."""
    return "".join(map(chr, parts))


def _parts(text: str) -> list[int]:
    return [ord(character) for character in text]


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgres"])
def shore(request: pytest.FixtureRequest) -> Iterator[Shore]:
    with ExitStack() as stack:
        if request.param == "memory":
            harbor = Harbor("memory://")
        elif request.param == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            harbor = Harbor(f"sqlite:///{folder}/jobs.db")
        else:
            from tests.postgres import store

            harbor = Harbor(driver=stack.enter_context(store.fresh()))
            harbor.migrate()
        yield Shore(stack.enter_context(harbor))


# -- names and keys --------------------------------------------------------------------------------

NAMED = ("queue", "tag", "idempotency_key", "correlation_id", "task")


def _options(kind: str, text: str) -> dict[str, Any]:
    return {"tags": [text]} if kind == "tag" else {kind: text}


def _is_name(text: str, limit: int) -> bool:
    if _unstorable(text) or text != text.strip() or not 0 < len(text.encode()) <= limit:
        return False
    return not any(unicodedata.category(character) == "Cc" for character in text)


def _stored_or_refused(shore: Shore, kind: str, text: str) -> None:
    before = shore.total()
    task = text if kind == "task" else "elsewhere"
    options = {} if kind == "task" else _options(kind, text)
    if kind == "idempotency_key":
        options["queue"] = str(uuid.uuid4())
    if not _is_name(text, KEY_LIMIT if kind == "idempotency_key" else NAME_LIMIT):
        with pytest.raises(ConfigurationError, match="empty|bytes|control|surrogate|whitespace") as refused:
            shore.harbor.enqueue(task, delay=86_400, **options)
        assert "\n" not in str(refused.value)
        str(refused.value).encode()  # a message that can be shown
        assert shore.total() == before
        return
    job = shore.harbor.enqueue(task, delay=86_400, **options)
    found = shore.harbor.jobs.get(job.id)
    assert (found.tags[0] if kind == "tag" else getattr(found, kind)) == text
    if kind in ("queue", "task", "tag"):
        where: Any = {kind: text}
        assert job.id in [each.id for each in shore.harbor.jobs.list(**where, limit=1000)]
    if kind == "idempotency_key":
        again = shore.harbor.enqueue(task, delay=86_400, **options)
        assert (again.id, again.existed) == (job.id, True)
    if kind == "queue":
        shore.harbor.queues.pause(text)
        assert text in [queue.name for queue in shore.harbor.queues.list() if queue.paused]
        shore.harbor.queues.resume(text)
        assert shore.harbor.jobs.counts(queue=text)["scheduled"] >= 1
    shore.harbor.jobs.delete(job.id)
    assert shore.total() == before


@pytest.mark.parametrize("kind", NAMED)
def test_names_and_keys_are_kept_as_given_or_refused(shore: Shore, kind: str) -> None:
    for text in TEXTS:
        _stored_or_refused(shore, kind, text)


@pytest.mark.parametrize("kind", NAMED)
@on_a_shared_store
@given(text=any_text)
def test_any_name_or_key_is_kept_as_given_or_refused(shore: Shore, kind: str, text: str) -> None:
    _stored_or_refused(shore, kind, text)


def test_two_names_that_only_look_alike_stay_two(shore: Shore) -> None:
    """No store normalises, trims or folds: neither for a queue nor for a key."""
    names = ["e\u0301", "\u00e9", "A", "a", "straße", "strasse", "\uff21", "a\u200d", "1", "1.0"]
    for name in names:
        shore.harbor.enqueue("elsewhere", queue=f"alike {name}", idempotency_key="k", delay=86_400)
        shore.harbor.enqueue("elsewhere", queue="alike", idempotency_key=name, delay=86_400)
    queues = [queue.name for queue in shore.harbor.queues.list() if queue.name.startswith("alike ")]
    assert sorted(queues) == sorted(f"alike {name}" for name in names)
    assert shore.harbor.jobs.counts(queue="alike")["scheduled"] == len(names)
    shore.harbor.jobs.delete_all()


@pytest.mark.parametrize("text", UNSTORABLE, ids=label)
def test_text_of_a_retry_policy_is_refused_where_a_name_would_be(text: str) -> None:
    with pytest.raises(ConfigurationError, match="a NUL or a lone surrogate, which no store keeps"):
        RetryPolicy(max_attempts=2, retry_on=(text,))


def test_text_of_a_retry_policy_is_kept(shore: Shore) -> None:
    patterns = [text for text in TEXTS if text.strip() and not _unstorable(text)]
    policy = RetryPolicy(max_attempts=2, never_retry_on=patterns)
    job = shore.harbor.enqueue("elsewhere", retry=policy, delay=86_400)
    options = shore.harbor.jobs.get(job.id).record.options
    assert isinstance(options.retry, dict)
    assert options.retry["never_retry_on"] == patterns
    shore.harbor.jobs.delete(job.id)


# -- payloads --------------------------------------------------------------------------------------


def _unstorable(text: str) -> bool:
    return "\0" in text or any("\ud800" <= character <= "\udfff" for character in text)


@on_a_shared_store
@given(text=any_text, key=any_text)
def test_payload_comes_back_as_given_or_is_refused(shore: Shore, text: str, key: str) -> None:
    payload = {"text": text, "deep": [{key: [text]}]}
    before = shore.total()
    if _unstorable(text) or _unstorable(key):
        with pytest.raises(PayloadError, match="holds a (NUL character|lone surrogate)"):
            shore.harbor.enqueue("elsewhere", payload, delay=86_400)
    else:
        job = shore.harbor.enqueue("elsewhere", payload, delay=86_400)
        assert shore.harbor.jobs.get(job.id).payload == payload
        changed = shore.harbor.jobs.update(job.id, payload={"changed": text}, tags=["t"])
        assert changed.payload == {"changed": text}
        shore.harbor.jobs.delete(job.id)
    assert shore.total() == before


# -- what handlers say -----------------------------------------------------------------------------


@settings(on_a_shared_store, max_examples=8)
@given(texts=st.lists(any_text, min_size=1, max_size=20))
def test_results_errors_and_progress_come_back(shore: Shore, texts: list[str]) -> None:
    """What no store can keep is replaced in an error or a message; as a result it fails the job, and says so."""
    _say(shore, texts)


def test_hostile_results_errors_and_progress_come_back(shore: Shore) -> None:
    _say(shore, list(TEXTS))


def _say(shore: Shore, texts: list[str]) -> None:
    echoes = [(text, shore.echo.enqueue(text)) for text in texts if not _unstorable(text)]
    failures = [(text, shore.fail.enqueue(_parts(text))) for text in texts]
    reports = [(text, shore.report.enqueue(_parts(text))) for text in texts]
    gifts = [(text, shore.give.enqueue(_parts(text))) for text in texts]
    shore.drain()
    for text, echo in echoes:
        assert echo.result(timeout=60) == text
    for text, failure in failures:
        [attempt] = failure.history()
        assert failure.refresh().state is State.DEAD
        assert attempt.error == failure.refresh().error
        assert attempt.error == clean_text(f"RuntimeError: {text}" if text else "RuntimeError", ERROR_MAX)
        assert attempt.traceback is not None
    for text, report in reports:
        progress = report.refresh().progress
        assert progress is not None
        assert progress.message == clean_text(text[:PROGRESS_MESSAGE_MAX], PROGRESS_MESSAGE_MAX)
    for text, gift in gifts:
        if _unstorable(text):
            with pytest.raises(JobFailed, match="the result cannot be stored as JSON"):
                gift.result(timeout=60)
        else:
            assert gift.result(timeout=60) == [text, {text: 1}]
    shore.harbor.jobs.delete_all()


# -- the schema's name -------------------------------------------------------------------------------


@given(name=any_text | st.from_regex(r"[A-Za-z_]\w{0,70}"))
def test_schema_of_a_url_is_quoted_or_refused(name: str) -> None:
    """It is the one thing that is ever put into a statement's text."""
    from taskharbor.drivers.postgres import PostgresDriver, sql

    plain = re.fullmatch(r"(?!pg_)[a-z_][a-z0-9_]{0,62}", name, re.IGNORECASE | re.ASCII)
    if plain is None:
        with pytest.raises(ConfigurationError, match="a schema's name has"):
            PostgresDriver("postgresql://localhost/none", schema=name)
    else:
        assert f'"{name}".jobs' in sql.statements(name)["search"]


@pytest.mark.parametrize("name", ['a"; DROP SCHEMA public; --', "a.b", "pg_catalog", "a%22b", "é", ""])
def test_hostile_schema_in_a_url_is_refused(name: str) -> None:
    from urllib.parse import quote

    with pytest.raises(ConfigurationError, match="a schema's name has"):
        Harbor(f"postgresql://localhost/none?schema={quote(name)}")
