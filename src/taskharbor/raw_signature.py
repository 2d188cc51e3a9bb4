"""The call plan of a task that takes its whole payload: `@harbor.task(raw=True)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from taskharbor.codec import PAYLOAD_LIMIT, decode_payload, encode_payload
from taskharbor.errors import ConfigurationError, PayloadError
from taskharbor.signature import CallPlan

_TAKEN = (dict, dict[str, Any], Mapping, Mapping[str, Any], Any)
_EXAMPLE = "def process_payment(payload: dict[str, Any])"


class RawPlan(CallPlan):
    """How a function with one parameter is called that is given the payload as it is.

    No payload is refused before the handler begins: the handler itself decides what is wrong with one. To a workflow
    it has no parameters, so no result of another job is put into its payload.
    """

    __slots__ = ("_parameter",)

    def __init__(
        self,
        function: Callable[..., Any],
        task: str,
        declared: Sequence[inspect.Parameter],
        hints: Mapping[str, Any],
        context: inspect.Parameter | None,
        aliases: Mapping[str, str] | None,
    ) -> None:
        if len(declared) != 1 or hints[declared[0].name] not in _TAKEN:
            given = ", ".join(str(each) for each in declared) or "no parameter"
            raise ConfigurationError(
                f"task {task!r} is declared with raw=True, and takes {given}; a raw task takes its whole payload as "
                f"one parameter, and before it a Context if it wants one: {_EXAMPLE}"
            )
        if aliases:
            raise ConfigurationError(
                f"task {task!r}: parameter_aliases cannot go with raw=True, whose payload has no parameters; "
                "let the handler read both names"
            )
        super().__init__(function, task, declared, hints, context, None)
        self._parameter = declared[0].name
        self.parameters = self.required = ()

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, partial: bool = False
    ) -> dict[str, Any]:
        """The one argument, by its name. It cannot be left for later."""
        if len(args) + len(kwargs) == 1 and (args or self._parameter in kwargs):
            return {self._parameter: args[0] if args else kwargs[self._parameter]}
        raise PayloadError(
            f"task {self.task!r} takes its whole payload: give {self._parameter}={{…}}, and nothing beside it"
        )

    def refuse_missing(self, bound: Mapping[str, Any]) -> None:
        """`bind` has refused it."""

    def encoded(self, bound: dict[str, Any], *, partial: bool = False, limit: int = PAYLOAD_LIMIT) -> str:
        """The payload itself, as JSON text."""
        return encode_payload(bound[self._parameter], limit=limit)

    def decode(self, payload: str) -> dict[str, Any]:
        return {self._parameter: decode_payload(payload)}

    def value_of(self, name: str, text: str) -> Any:
        """The text: no annotation says anything else about a value."""
        return text

    def _expected(self) -> str:
        return "it takes any payload"
