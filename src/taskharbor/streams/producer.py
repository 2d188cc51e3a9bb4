"""`Stream`: the typed producer of a topic. A message is published when all in-sync brokers have it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from typing import TYPE_CHECKING, Any

import msgspec
from confluent_kafka import KafkaException, Producer
from msgspec import UNSET, Struct

from taskharbor.client.task import Signature
from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError, StreamError
from taskharbor.records import DEFAULT_QUEUE, NewJob
from taskharbor.rules.meta import read_meta
from taskharbor.streams.brokers import Brokers
from taskharbor.streams.client_errors import CREATE_OWN_TOPIC, explained
from taskharbor.streams.client_log import MET, ClientLog
from taskharbor.streams.topic_names import checked_topic

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

PUBLISH_SECONDS = 30.0
PUBLISH_AGAIN = "create it, or start a worker of this topic with --create-topic, and publish again"
POLL_SECONDS = 0.05
Headers = Sequence[tuple[str, bytes]]


class Published(Struct, frozen=True):
    """Where a message stands in its topic."""

    topic: str
    partition: int
    offset: int


class Sender:
    """Sends messages, and answers each when the brokers have it. Any thread may use it."""

    def __init__(self, brokers: Brokers, if_missing: str = CREATE_OWN_TOPIC, log: ClientLog = MET) -> None:
        self._brokers = brokers
        self._if_missing = if_missing  # what to do about a topic that is missing
        self._log = log
        self._lock = threading.Lock()
        self._producer: Any = None
        self._outstanding = 0
        self._work = threading.Event()
        self._closed = False

    def send(
        self, topic: str, body: bytes, key: bytes | None = None, headers: Headers = ()
    ) -> Future[Published]:
        """Hand a message to the client; the answer comes when the brokers have it, or have refused it."""
        answer: Future[Published] = Future()
        # No caller can cancel it, since the message is on its way: its delivery would raise in the thread that polls.
        answer.set_running_or_notify_cancel()

        def delivered(error: Any, message: Any) -> None:
            with self._lock:
                self._outstanding -= 1
            if error is not None:
                answer.set_exception(self._explained(KafkaException(error), topic))
            else:
                self._log.has_met = True
                answer.set_result(Published(topic, message.partition(), message.offset()))

        producer = self._started()
        with self._lock:
            self._outstanding += 1
        while True:
            try:
                producer.produce(topic, body, key, headers=list(headers), on_delivery=delivered)
                break
            except BufferError:  # the client's own queue is full: let some of it go
                producer.poll(POLL_SECONDS)
            except KafkaException as error:
                with self._lock:
                    self._outstanding -= 1
                raise self._explained(error, topic) from error
        self._work.set()
        return answer

    def _explained(self, error: KafkaException, topic: str) -> Exception:
        return explained(error, topic, if_missing=self._if_missing)

    def close(self) -> None:
        """Wait until everything is sent, and end the thread."""
        self._closed = True
        self._work.set()
        if self._producer is not None:
            self._producer.flush(PUBLISH_SECONDS)

    def _started(self) -> Any:
        with self._lock:
            if self._producer is None:
                self._producer = Producer(self._brokers.producer_settings(), logger=self._log)
                threading.Thread(target=self._poll, name="taskharbor-producer", daemon=True).start()
            return self._producer

    def _poll(self) -> None:
        """Let the client call back, for as long as an answer is outstanding."""
        while not self._closed:
            self._work.wait()
            self._work.clear()
            while self._outstanding and not self._closed:
                self._producer.poll(POLL_SECONDS)


class Stream:
    """A topic that a harbor publishes to: `harbor.stream("tasks").publish(send.s(to="a@b.c"))`."""

    def __init__(self, harbor: Harbor, topic: str, brokers: Brokers) -> None:
        self.topic = checked_topic(topic)
        self._harbor = harbor
        self._log = ClientLog(has_met=False)
        self._sender = Sender(brokers, PUBLISH_AGAIN, self._log)
        self.is_closed = False

    def publish(self, signature: Signature[Any], *, key: str | bytes | None = None) -> Published:
        """Publish one message, and wait until the brokers have it. Messages of one key keep their order."""
        [published] = self.publish_many([signature], key=key)
        return published

    def publish_many(
        self, signatures: Iterable[Signature[Any]], *, key: str | bytes | None = None
    ) -> list[Published]:
        """Publish messages, and wait until the brokers have all of them.

        It is not all or nothing: after an error, those before may be there.
        """
        answers = self._send(signatures, key)
        wait_for_all(answers, PUBLISH_SECONDS)
        return [self._answer_of(each) for each in answers]

    async def apublish(self, signature: Signature[Any], *, key: str | bytes | None = None) -> Published:
        """Publish one message, and wait until the brokers have it. Messages of one key keep their order."""
        [published] = await self.apublish_many([signature], key=key)
        return published

    async def apublish_many(
        self, signatures: Iterable[Signature[Any]], *, key: str | bytes | None = None
    ) -> list[Published]:
        """Publish messages, and wait until the brokers have all of them. See `publish_many`."""
        import asyncio

        answers = self._send(signatures, key)
        # It takes the errors, so that the loop does not log them: the caller gets the first one.
        answered = asyncio.gather(*map(asyncio.wrap_future, answers), return_exceptions=True)
        await asyncio.wait([answered], timeout=PUBLISH_SECONDS)
        return [self._answer_of(each) for each in answers]

    def close(self) -> None:
        """Wait until everything is sent, and let go of the connection."""
        self.is_closed = True
        self._sender.close()

    def _send(self, signatures: Iterable[Signature[Any]], key: str | bytes | None) -> list[Future[Published]]:
        key_bytes = key.encode() if isinstance(key, str) else key
        if key_bytes is not None and not isinstance(key_bytes, bytes):
            raise ConfigurationError(f"a key is text or bytes, not {shorten(key)}")
        if self.is_closed:
            raise StreamError(
                f"this producer of topic {self.topic!r} is closed; get another one with harbor.stream({self.topic!r})"
            )
        messages = [message_of(_job_of(each, index)) for index, each in enumerate(signatures)]
        return [self._sender.send(self.topic, body, key_bytes) for body in messages]

    def _answer_of(self, answer: Future[Published]) -> Published:
        if not answer.done():
            raise StreamError(
                f"topic {self.topic!r}: the brokers have not answered within {PUBLISH_SECONDS:g} s"
                f"{self._log.because()}; the messages may still arrive"
            )
        return answer.result()


def _job_of(signature: object, index: int) -> NewJob:
    if not isinstance(signature, Signature):
        raise ConfigurationError(
            f"publish takes a signature such as send.s(to='a@b.c'), not {shorten(signature)}"
        )
    return signature.new_job(index)


def message_of(job: NewJob) -> bytes:
    """Write a job as a message; refuse options that a log cannot keep."""
    options = job.options
    refused = {
        "run_at, delay": job.run_at is not None or job.delay is not None,
        "expires_at": job.expires_at is not None,
        "idempotency_key": job.idempotency_key is not None,
        "priority": job.priority != 0,
        "queue": job.queue != DEFAULT_QUEUE,
        "retry": options.retry is not UNSET,
        "tags": bool(options.tags),
    }
    if given := ", ".join(name for name, is_given in refused.items() if is_given):
        raise ConfigurationError(
            f"a message of a topic cannot carry {given}: a log keeps the order of its messages and knows nothing else; "
            "leave it out, or enqueue the job"
        )
    envelope: dict[str, Any] = {"task": job.task, "payload": msgspec.Raw(job.payload.encode()), "id": job.id}
    if options.correlation_id is not None:
        envelope["correlationId"] = options.correlation_id
    if options.max_attempts is not None:
        envelope["maxAttempts"] = options.max_attempts
    if options.timeout is not None:
        envelope["timeout"] = options.timeout
    if job.meta is not None:
        envelope["meta"] = read_meta(job.meta)
    return msgspec.json.encode(envelope)
