"""Payload codecs: what a store keeps of payloads, results, step results and progress values, such as ciphertext.

The client and the worker apply the codec, so no store knows of it: an encoded text is wrapped in a JSON object that
every store takes, `{"taskharbor:codec": NAME, "data": TEXT}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from taskharbor.codec import ENCODED, PAYLOAD_LIMIT, SEALED_PREFIX, checked_name, counted, shorten
from taskharbor.drivers.base import AlikeJobs
from taskharbor.errors import ConfigurationError, PayloadError, PayloadTooLarge
from taskharbor.records import JobRecord, NewJob, Progress

_encode = msgspec.json.encode


class PayloadCodec(Protocol):
    """Encodes what a store keeps, and decodes it again: `Harbor(payload_codec=…)`.

    Both methods take and return text, and run on the event loop of the client or the worker, so they should take
    microseconds. `name` is stored with each text.
    """

    @property
    def name(self) -> str: ...

    def encode(self, text: str) -> str:
        """Return the text that the store keeps for this JSON text."""
        ...

    def decode(self, text: str) -> str:
        """Return what was encoded, or raise."""
        ...


class CannotOpen(PayloadError):
    """This harbor cannot open what a codec has encoded; another one may."""


class Sealing:
    """Applies a harbor's codec; without a codec it stores plain JSON, and cannot open what a codec has encoded."""

    __slots__ = ("codec", "name")

    def __init__(self, codec: PayloadCodec | None) -> None:
        self.codec = codec
        self.name = "" if codec is None else _checked(codec)

    # -- writing --

    def seal(self, text: str, what: str = "the payload", limit: int = PAYLOAD_LIMIT) -> str:
        """Return what a store keeps of this JSON text. What is sealed already stays as it is."""
        if self.codec is None or text.startswith(SEALED_PREFIX):
            return text
        try:
            data = self.codec.encode(text)
        except Exception as error:
            raise PayloadError(
                f"the payload codec {self.name!r} could not encode {what}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(data, str) or "\0" in data:
            raise PayloadError(
                f"the payload codec {self.name!r} must encode {what} as text without a NUL, not {shorten(data)}"
            )
        try:
            sealed = _encode({ENCODED: self.name, "data": data})
        except UnicodeEncodeError as error:
            raise PayloadError(
                f"the payload codec {self.name!r} must encode {what} as valid text, and what it returned holds a lone "
                "surrogate; turn bytes into text with base64"
            ) from error
        if len(sealed) > limit:
            raise PayloadTooLarge(
                f"{what} takes {counted(len(sealed), 'byte')} as the payload codec {self.name!r} encodes it, and the "
                f"limit is {limit:,}; store the data elsewhere (a file, a bucket, a table) and pass its address"
            )
        return sealed.decode()

    def sealed(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """Return the jobs as a store keeps them."""
        if self.codec is None:
            return jobs
        if isinstance(jobs, AlikeJobs):
            return AlikeJobs(jobs.shared, len(jobs), lambda start, stop: self._columns(jobs, start, stop))
        return [replace(job, payload=self.seal(job.payload)) for job in jobs]

    def _columns(self, jobs: AlikeJobs, start: int, stop: int) -> tuple[list[str], list[str]]:
        ids, payloads = jobs.columns(start, stop)
        return ids, [self.seal(payload) for payload in payloads]

    # -- reading --

    def open(self, text: str, what: str = "the payload") -> str:
        """Return the JSON text that was sealed, or `CannotOpen` if this harbor cannot."""
        if not text.startswith(SEALED_PREFIX):
            return text
        name, data, plain = _parts(text, what)
        if self.codec is None:
            raise CannotOpen(
                f"{what} was encoded by the payload codec {name!r}, and this harbor has none; "
                "give it the one that the producer has: Harbor(payload_codec=…)"
            )
        if name != self.name:
            raise CannotOpen(
                f"{what} was encoded by the payload codec {name!r}, and this harbor has {self.name!r}; "
                "give it one that decodes both, under one name"
            )
        try:
            opened = self.codec.decode(data)
        except Exception as error:
            raise CannotOpen(
                f"the payload codec {name!r} could not decode {what}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(opened, str):
            raise CannotOpen(f"the payload codec {name!r} must decode to text, not {shorten(opened)}")
        if not plain:
            return opened
        more = _encode(plain).decode()
        return more if opened == "{}" else f"{opened[:-1]},{more[1:]}"

    def shown_record(self, record: JobRecord) -> JobRecord:
        """Return the record with its payload, result and progress so."""
        result = None if record.result is None else self.shown(record.result)
        progress = self.shown_progress(record.progress)
        return replace(record, payload=self.shown(record.payload), result=result, progress=progress)

    def shown_progress(self, progress: Progress | None) -> Progress | None:
        if progress is None or progress.value_json is None:
            return progress
        return replace(progress, value_json=self.shown(progress.value_json))

    def shown(self, text: str) -> str:
        """Return the text opened, or as it is stored if this harbor cannot open it: for those who look at jobs."""
        try:
            return self.open(text)
        except CannotOpen:
            return text


def _parts(text: str, what: str) -> tuple[str, str, dict[str, Any]]:
    """Return the codec's name, what it encoded, and the plain arguments beside it: a failure task's, of what died."""
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
        name, data = found.pop(ENCODED), found.pop("data")
    except (msgspec.DecodeError, KeyError, UnicodeError, RecursionError) as error:
        raise CannotOpen(f"{what} was encoded by a payload codec and is damaged: {error}") from error
    if not isinstance(name, str) or not isinstance(data, str):
        raise CannotOpen(f"{what} was encoded by a payload codec and is damaged: {shorten(text)}")
    return name, data, found


def _checked(codec: PayloadCodec) -> str:
    name = getattr(codec, "name", None)
    verbs = [getattr(codec, verb, None) for verb in ("encode", "decode")]
    if isinstance(codec, type) or name is None or not all(map(callable, verbs)):
        raise ConfigurationError(
            f"payload_codec must have a name and the methods encode(text) and decode(text), not {shorten(codec)}"
        )
    return checked_name("payload codec", name)
