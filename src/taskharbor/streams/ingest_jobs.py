"""What messages become in ingest mode: a job each, in groups that a store takes as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from taskharbor.client.harbor import Harbor
from taskharbor.client.options import merged, new_id, new_job
from taskharbor.drivers.contract.ingesting import AlikeMessages
from taskharbor.errors import PayloadError
from taskharbor.records import NO_OPTIONS, NewJob, Options, read_options
from taskharbor.rules.meta import with_inherited
from taskharbor.streams.dead_jobs import UNREADABLE_TASK, unkeepable_job, unreadable_job
from taskharbor.streams.first import First
from taskharbor.streams.jobs import Keys
from taskharbor.streams.messages import Place, Readable, Unreadable, log_digest, read_message, with_place

TEMPLATES_MAX = 1_000  # of tasks that messages name: their names may be anything
_ASKED = ("max_attempts", "timeout", "correlation_id")


class LogId(Struct, frozen=True):
    """The log that a group reads: a topic of a cluster. A topic that is made anew is another log."""

    name: str  # what the store keeps its offsets under
    topic: str
    topic_id: str
    digest: bytes

    @classmethod
    def of(cls, cluster: str, topic: str, topic_id: str, group: str) -> LogId:
        name = f"{cluster}/{topic}/{topic_id}/{group}"
        return cls(name, topic, topic_id, log_digest(cluster, topic_id, group))


class Made(Struct, gc=False):
    """What one message becomes: a job like `template`, or one that is dead from the start."""

    offset: int
    template: NewJob | None
    payload: str
    meta: str | None
    dead: First | None = None


class IngestJobs:
    """Makes jobs of messages, with the options that their tasks declare."""

    def __init__(self, harbor: Harbor, dead_queue: str, queue: str | None) -> None:
        self._harbor = harbor
        self._dead_queue = dead_queue
        self._queue = queue  # None: the one that the task declares
        self._templates: dict[str, NewJob] = {}
        self._is_task: Callable[[str], bool] = lambda task: harbor._known(task) is not None
        self._seal = harbor.sealing.seal

    def made_of(self, message: Any, log: LogId) -> Made:
        """Read a message. It never raises: a message that cannot be read must not hold up its partition."""
        offset, key = message.offset(), message.key()
        place = Place(log.digest, log.topic, message.partition(), offset, message.timestamp()[1])
        read = read_message(message.value(), key, message.headers(), self._is_task)
        if isinstance(read, Unreadable):
            return self._unreadable(place, read, message)
        try:
            template = self._template(read)
            meta = read.meta if template.meta is None else with_inherited(read.meta, template.meta)
            return Made(offset, template, self._seal(read.payload), with_place(meta, place, key))
        except PayloadError as error:  # sealed, it is too large
            return self._unkeepable(place, read.task, error)

    def refused(self, made: Made, partition: int, log: LogId, error: Exception) -> Made:
        """The same message, after the store has refused what it became."""
        task = UNREADABLE_TASK if made.template is None else made.template.task
        return self._unkeepable(Place(log.digest, log.topic, partition, made.offset, 0), task, error)

    def _unreadable(self, place: Place, read: Unreadable, message: Any) -> Made:
        dead = unreadable_job(place, read, self._dead_queue, _key_of(place), self._now())
        dead = replace(dead, job=replace(dead.job, payload=self._seal(dead.job.payload)))
        return Made(place.offset, None, "", None, First(place, dead, 0, read, message))

    def _unkeepable(self, place: Place, task: str, error: Exception) -> Made:
        dead = unkeepable_job(place, task, error, self._dead_queue, _key_of(place), self._now())
        return Made(place.offset, None, "", None, First(place, dead, 0))

    def _now(self) -> int:
        return self._harbor.driver.clock.now()

    def _template(self, read: Readable) -> NewJob:
        if read.options is not None:
            return self._new_template(read.task, read_options(read.options)[0])
        known = self._templates.get(read.task)
        if known is None:
            known = self._new_template(read.task, NO_OPTIONS)
            if len(self._templates) < TEMPLATES_MAX:
                self._templates[read.task] = known
        return known

    def _new_template(self, name: str, asked: Options) -> NewJob:
        """A job of the task with the options that it declares and those that its message asks for."""
        task = self._harbor._known(name)
        declared: dict[str, Any] = {} if task is None else task._options
        given = {name: value for name, value in asdict(asked).items() if name in _ASKED and value is not None}
        limit = declared.get("options", {}).get("max_attempts") or declared.get("policy_limit")
        if limit and "max_attempts" in given:  # a message asks for no more than its task allows
            given["max_attempts"] = min(limit, given["max_attempts"])
        job = new_job(name if task is None else task.name, "{}", merged(declared, {"options": given}))
        return job if self._queue is None else replace(job, queue=self._queue)


def grouped(made: Sequence[Made]) -> list[AlikeMessages]:
    """Jobs of messages in groups that differ in nothing but ids, payloads and metas; ids in the order of the log."""
    groups: dict[int, tuple[NewJob, list[str], list[str], list[str | None]]] = {}
    for each in made:
        template = each.template
        if template is None:
            continue
        group = groups.get(id(template))
        if group is None:
            group = groups[id(template)] = (template, [], [], [])
        group[1].append(new_id())
        group[2].append(each.payload)
        group[3].append(each.meta)
    return [AlikeMessages(*group) for group in groups.values()]


def _key_of(place: Place) -> str:
    return Keys(place.log.hex()).of(place)
