"""Log lines: one record, one line, with the fields that find it again.

`log_line` logs a sentence that names some fields, `"Job {job} succeeded"`, with all of them: job, task, queue,
attempt, correlation_id. The text of the record is the sentence, then each field that the sentence does not name, so a
line says each thing once, and says it under plain `logging` as well. The formatters here write it for a person
(`KeyValueFormatter`) or for a machine (`JsonFormatter`, every field beside the sentence). They also write the fields
of other records: `extra={"fields": {…}}`.

What comes from outside (an error's text, a payload) can neither begin a line of its own nor reach the terminal as an
escape code, and passwords in URLs are masked.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from string import Formatter
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]

MASK = "***"
_CONTINUED = "    | "  # begins each line of a traceback, so that none can pass for a record

# -- secrets -------------------------------------------------------------------------------------

# Greedy up to the last @ of the word: a password may contain an unescaped @ or /. It is only looked for
# in what ends with an @, and from a :// on, so that the time it takes grows with the text and no faster.
_WORD = re.compile(r"\S+")
_USERINFO = re.compile(r"(?P<before>(?<=[A-Za-z0-9+.-])://(?!/)[^:/@]*:).*@")
_SECRET_PARAMETER = re.compile(
    r"(?P<before>[?&;](?:[a-z_]*passw(?:or)?d|[a-z_]*secret|[a-z_]*token)=)[^&;\s]*", re.IGNORECASE
)


def masked_url(url: str) -> str:
    """Return the URL with `***` for its password and for any parameter that names one."""
    if "@" in url:
        url = _WORD.sub(_without_password, url)
    return _SECRET_PARAMETER.sub(rf"\g<before>{MASK}", url)


def _without_password(word: re.Match[str]) -> str:
    text = word[0]
    end = text.rfind("@") + 1
    return _USERINFO.sub(rf"\g<before>{MASK}@", text[:end]) + text[end:] if "://" in text[:end] else text


def masked(text: str) -> str:
    """Return the text with every URL in it masked."""
    return masked_url(text) if "://" in text else text


# -- one line ------------------------------------------------------------------------------------


def one_line(text: str) -> str:
    """Return the text with everything that is not printable, line ends above all, written as an escape."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _ESCAPES.get(character) or _escape(character)
        for character in text
    )


_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# -- a sentence with fields ----------------------------------------------------------------------


class Line:
    """The message of a record: a sentence in which `{name}` stands for a field, and all fields.

    It becomes text when a handler writes it.
    """

    __slots__ = ("_template", "fields")

    def __init__(self, template: str, fields: Mapping[str, Any]) -> None:
        self._template = template
        self.fields = fields

    @property
    def named(self) -> frozenset[str]:
        """The fields that the sentence names."""
        return _names_in(self._template)

    @property
    def sentence(self) -> str:
        return self._template.format_map(_Shown(self.fields))

    def __str__(self) -> str:
        return " ".join([self.sentence, *_pairs(_given(self.fields), self.named)])


class _Shown:
    """Format fields as a sentence shows them."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        value = self._fields.get(name, "?")
        if isinstance(value, list | tuple):
            return ", ".join(one_line(_shown(each)) for each in value)
        return one_line(_shown(value))


@lru_cache(256)
def _names_in(template: str) -> frozenset[str]:
    return frozenset(name for _, name, _, _ in Formatter().parse(template) if name)


def log_line(
    logger: logging.Logger,
    level: int,
    sentence: str,
    fields: Mapping[str, Any],
    *,
    traceback: str | None = None,
    error: BaseException | None = None,
    stacklevel: int = 2,
) -> None:
    """Log a sentence such as `"Job {job} succeeded"`, with its fields.

    With an `error` its traceback is logged; `traceback` is the text of one that was raised elsewhere.
    """
    if not logger.isEnabledFor(level):
        return
    file, number, function, _ = logger.findCaller(stacklevel=stacklevel)
    raised = None if error is None else (type(error), error, error.__traceback__)
    record = logger.makeRecord(
        logger.name, level, file, number, Line(sentence, fields), (), raised, function, {"fields": fields}
    )
    if traceback:  # where every formatter looks for the text of an exception
        record.exc_text = "\n".join(one_line(line) for line in masked(traceback).rstrip("\n").split("\n"))
    logger.handle(record)


# -- formatters ----------------------------------------------------------------------------------


class KeyValueFormatter(logging.Formatter):
    """`2026-01-01T12:00:00.123Z INFO Job 0197… succeeded task=email:send attempt=1`"""

    def format(self, record: logging.LogRecord) -> str:
        message, said = _message(record)
        words = [_time(record), record.levelname, one_line(message), *_pairs(_fields(record), said)]
        return "\n".join([" ".join(words), *_traceback_lines(self, record)])


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the fields beside them."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record)[0],
        }
        traceback = _traceback(self, record)
        if traceback:
            document["traceback"] = traceback
        for name, value in _fields(record).items():
            # A field that is called `time` must not hide the record's own.
            document[f"{name}_" if name in document else name] = _json_value(value)
        return json.dumps(document, ensure_ascii=True, default=lambda value: masked(str(value)))


def _time(record: logging.LogRecord) -> str:
    instant = datetime.fromtimestamp(record.created, UTC)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> tuple[str, frozenset[str]]:
    """Return the record's sentence, and the fields that it names."""
    if isinstance(record.msg, Line):
        return record.msg.sentence, record.msg.named
    return masked(record.getMessage()), frozenset()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    return _given(fields) if isinstance(fields, Mapping) else {}


def _given(fields: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in fields.items() if value is not None}


def _pairs(fields: Mapping[str, Any], said: frozenset[str]) -> list[str]:
    """Return the fields that the sentence does not name."""
    return [f"{_key(name)}={_text_value(value)}" for name, value in fields.items() if name not in said]


def _key(name: str) -> str:
    return re.sub(r"[\s=\"]", "_", one_line(name)) or "_"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping | list | tuple):
        value = json.dumps(value, ensure_ascii=False, default=str)
    return masked(_instant(value) if isinstance(value, datetime) else str(value))


def _text_value(value: object) -> str:
    text = _shown(value)
    if text and text.isprintable() and not re.search(r"[\s=\"\\]", text):
        return text
    return '"' + one_line(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _json_value(value: object) -> object:
    if isinstance(value, str):
        return masked(str(value))
    if isinstance(value, datetime):
        return _instant(value)
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)  # JSON has no NaN and no infinity
    return value


def _instant(value: datetime) -> str:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    elif record.exc_text:
        parts.append(record.exc_text)
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return masked("\n".join(parts))


def _traceback_lines(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    text = _traceback(formatter, record)
    return [_CONTINUED + one_line(line) for line in text.split("\n")] if text else []


# -- setting it up -------------------------------------------------------------------------------


def configure(
    log_format: LogFormat = "text", level: int | str = logging.INFO, stream: TextIO | None = None
) -> logging.Handler:
    """Send every record of `level` and above to `stream` (standard error), written as `log_format` says.

    Called again, it changes what it set up before. Handlers that an application has installed stay.
    """
    formatter = JsonFormatter() if log_format == "json" else KeyValueFormatter()
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(handler)
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(formatter)
    root.addHandler(handler)
    root.setLevel(level.upper() if isinstance(level, str) else level)
    return handler


class _Handler(logging.StreamHandler[TextIO]):
    """Our own class, so that a second `configure` finds it."""


__all__ = [
    "JsonFormatter",
    "KeyValueFormatter",
    "LogFormat",
    "configure",
    "log_line",
    "masked",
    "masked_url",
    "one_line",
]
