"""The call plan of a task function: which parameters it takes, and how a payload becomes its arguments.

A plan is made once, when the task is declared. Enqueueing uses it to turn a call into a payload, a worker to
turn the payload back into arguments. Both validate against the annotations, by msgspec's strict rules: "5" is
no int, an int is a float too, an enum is its value, bytes are base64, a datetime is ISO 8601. A datetime in
a payload is the user's own data: a naive one comes back naive, an aware one as the same instant at a fixed
offset. An unannotated parameter takes any JSON value.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from taskharbor.codec import (
    PAYLOAD_LIMIT,
    agreeing,
    clean_text,
    counted,
    decode_hook,
    decode_payload,
    ensure_unchanged,
    is_model,
    problem_in,
    reason_of,
    shorten,
    to_json,
)
from taskharbor.errors import ConfigurationError, PayloadError


class CallPlan:
    """How one task function is called.

    `parameters` are the names a payload may hold, in the function's order and without the context;
    `required` those it must hold. `call(arguments, context)` calls the function, and passes the context on
    only to a function that takes it.
    """

    __slots__ = (
        "_aliases",
        "_in_full",
        "_partial",
        "_positional",
        "_read",
        "_required",
        "_types",
        "_what",
        "call",
        "context_parameter",
        "parameters",
        "required",
        "task",
    )

    task: str
    parameters: tuple[str, ...]
    required: tuple[str, ...]
    context_parameter: str | None
    call: Callable[[dict[str, Any], Any], Any]

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *,
        task: str | None = None,
        parameter_aliases: Mapping[str, str] | None = None,
        context_type: type | None = None,
    ) -> CallPlan:
        """Read the function's signature; `ConfigurationError` when no payload could describe a call of it.

        `parameter_aliases` maps an old name of a parameter, which stored payloads may still hold, to its
        present name. `context_type` is the class whose instance is injected as the first parameter.
        """
        if context_type is None:
            from taskharbor.context import Context

            context_type = Context
        name = task or _shown(function)
        declared = _declared_parameters(function, name)
        hints = {each.name: _hint_of(each, function, name) for each in declared}
        context = _context_parameter(declared, hints, context_type, name)
        return cls(
            function,
            name,
            [each for each in declared if each is not context],
            hints,
            context,
            parameter_aliases,
        )

    def __init__(
        self,
        function: Callable[..., Any],
        task: str,
        declared: Sequence[inspect.Parameter],
        hints: Mapping[str, Any],
        context: inspect.Parameter | None,
        aliases: Mapping[str, str] | None,
    ) -> None:
        self.task = task
        self.parameters = tuple(each.name for each in declared)
        self.required = tuple(each.name for each in declared if each.default is each.empty)
        self._required = frozenset(self.required)
        self._what = f"the payload of task {task!r}"
        self.context_parameter = context.name if context else None
        self.call = _caller(function, context)
        self._positional = tuple(each.name for each in declared if each.kind is not each.KEYWORD_ONLY)
        self._types = {each.name: _storable(hints[each.name], each.name, task) for each in declared}
        self._in_full = len(self.required) == len(self.parameters)
        self._read = self._reader(self.required)
        self._partial: Callable[[bytes | str], Any] | None = None
        self._aliases = _checked_aliases(aliases, self.parameters, task)

    @property
    def takes_context(self) -> bool:
        return self.context_parameter is not None

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, partial: bool = False
    ) -> dict[str, Any]:
        """The arguments by parameter name, as Python itself would bind them; defaults are not filled in.

        `partial` lets required ones be left out (`task.s()`, where a workflow fills in the rest).
        """
        if not args and kwargs.keys() <= self._types.keys() and (partial or self._suffices(kwargs)):
            return dict(kwargs)
        if len(args) > len(self._positional):
            raise PayloadError(
                f"task {self.task!r} takes {counted(len(self._positional), 'positional argument')}, "
                f"but {len(args)} {agreeing(len(args), 'was', 'were')} given; {self._expected()}"
            )
        bound = dict(zip(self._positional, args, strict=False))
        for name, value in kwargs.items():
            if name in bound:
                raise PayloadError(f"task {self.task!r} got two values for {name!r}; give it once")
            if name not in self._types:
                raise PayloadError(
                    f"task {self.task!r} has no parameter {self._unknown(name)}; {self._expected()}"
                )
            bound[name] = value
        if not partial:
            self.refuse_missing(bound)
        return bound

    def _suffices(self, given: Mapping[str, Any]) -> bool:
        """Whether none of the required arguments is missing, if all are parameters."""
        return len(given) == len(self.parameters) or self._required <= given.keys()

    def refuse_missing(self, bound: Mapping[str, Any]) -> None:
        """Refuse arguments among which a required one is missing."""
        if len(bound) < len(self.parameters):
            missing = [name for name in self.required if name not in bound]
            if missing:
                raise PayloadError(f"task {self.task!r} needs {_listed(missing)}; {self._expected()}")

    def encode(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        partial: bool = False,
        limit: int = PAYLOAD_LIMIT,
    ) -> str:
        """The payload of a call, as JSON text: bound, validated, and proved to come back as it was given."""
        return self.encoded(self.bind(args, kwargs, partial=partial), partial=partial, limit=limit)

    def encoded(self, bound: dict[str, Any], *, partial: bool = False, limit: int = PAYLOAD_LIMIT) -> str:
        """The payload of arguments that `bind` has bound."""
        if not bound:
            return "{}"
        encoded = to_json(bound, self._what, limit)
        try:
            values = asdict((self._read_partial() if partial else self._read)(encoded))
        except MemoryError:
            raise
        except Exception as error:  # a __post_init__ may raise anything
            raise self._refusal(bound, error) from error
        if not self._in_full or partial:
            values = {name: value for name, value in values.items() if value is not UNSET}
        ensure_unchanged(bound, values, self._what)
        return encoded.decode()

    def encode_each(self, payloads: Sequence[Mapping[str, Any]], first: int = 0) -> list[str]:
        """The payloads of many calls, each given as a mapping of arguments; an error says at which index it arose.

        `first` is the index of the first of them.
        """
        bind, encoded, needs = self.bind, self.encoded, bool(self.required)
        texts: list[str] = []
        for given in payloads:
            try:
                if type(given) is not dict and not isinstance(
                    given, Mapping
                ):  # the first test is the cheaper one
                    raise PayloadError(
                        f"enqueue_many takes a mapping of arguments for each job, not {shorten(given)}; "
                        'for example [{"to": "a@b.c"}, {"to": "d@e.f"}]'
                    )
                texts.append(encoded(bind((), given)) if given or needs else "{}")
            except PayloadError as error:
                raise at_index(first + len(texts), error) from error.__cause__
        return texts

    def decode(self, payload: str) -> dict[str, Any]:
        """The keyword arguments of a stored payload, validated; `PayloadError` when it does not fit.

        A parameter the payload leaves out is left out here, so that the function's own default holds.
        """
        if payload == "{}" and not self.required:
            return {}
        try:
            values = asdict(self._read(payload))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a __post_init__ may raise anything; chained below
            values = self._decode_renamed(payload, error)
        if self._in_full:
            return values
        return {name: value for name, value in values.items() if value is not UNSET}

    def check_without(self, payload: str, filled: str) -> None:
        """Raise `PayloadError` unless the payload fits as soon as the parameter `filled` is given as well."""
        given = {self._aliases.get(name, name): value for name, value in decode_payload(payload).items()}
        self.bind((), {**given, self._aliases.get(filled, filled): None})
        try:
            self._read_partial()(msgspec.json.encode(given))
        except MemoryError:
            raise
        except Exception as error:
            raise self._refusal(given, error) from error

    def value_of(self, name: str, text: str) -> Any:
        """The JSON value that a person means who writes `text` for the parameter `name`.

        Where the annotation takes the text itself, this is the text: a str, no annotation, a datetime, a Decimal, an
        enum of texts. Everywhere else the text is read as JSON. `PayloadError` when neither fits. The text for a name
        that is no parameter stays as it is.
        """
        hint = self._types.get(self._aliases.get(name, name), Any)
        read = msgspec.json.Decoder(hint, dec_hook=decode_hook).decode
        try:
            read(msgspec.json.encode(text))
        except UnicodeEncodeError:  # storing it says what is wrong with it
            return text
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - as in decode
            as_text = reason_of(error)
        else:
            return text
        try:
            value = msgspec.json.decode(text)
        except (ValueError, RecursionError):
            raise self._unfit(name, text, hint, as_text.removesuffix(_GOT_TEXT)) from None
        try:
            read(text)
        except MemoryError:
            raise
        except Exception as error:  # as in decode
            takes_no_text = as_text.endswith(_GOT_TEXT)
            raise self._unfit(name, text, hint, reason_of(error) if takes_no_text else as_text) from error
        return value

    def described(self) -> list[tuple[str, str, bool]]:
        """Return each parameter with the words for what it takes, and whether a payload must have it."""
        return [
            (name, _described(self._types.get(name, Any)), name in self.required) for name in self.parameters
        ]

    def _unfit(self, name: str, text: str, hint: Any, reason: str) -> PayloadError:
        return PayloadError(
            f"task {self.task!r} cannot take {name}={shorten(text)}: {reason}; "
            f"{name} takes {_described(hint)}"
        )

    def _decode_renamed(self, payload: str, error: Exception) -> dict[str, Any]:
        """Try again with the present names of renamed parameters.

        Only here, after the plain decoding has failed: an old name is an unknown field to it, so that
        a payload with present names never pays for the aliases.
        """
        try:
            fields = msgspec.json.decode(payload, type=dict[str, msgspec.Raw]) if self._aliases else {}
        except (ValueError, RecursionError):
            fields = {}
        old = self._aliases.keys() & fields.keys()
        if not old:
            raise self._misfit(error) from error
        for name in old:
            present = self._aliases[name]
            if present in fields:
                raise PayloadError(
                    f"the payload does not fit task {self.task!r}: it holds {name!r} and {present!r}, "
                    "which are one parameter"
                )
            fields[present] = fields.pop(name)
        try:
            return asdict(self._read(msgspec.json.encode(fields)))
        except MemoryError:
            raise
        except Exception as again:  # as in decode
            raise self._misfit(again) from again

    def _misfit(self, error: Exception) -> PayloadError:
        return PayloadError(
            f"the payload does not fit task {self.task!r}: {reason_of(error)}; {self._expected()}"
        )

    def _refusal(self, bound: dict[str, Any], error: Exception) -> PayloadError:
        reason = problem_in(bound) or reason_of(error)
        for name, value in bound.items():
            if reason.startswith(f"at {name}: expected"):
                reason += f" ({shorten(value)})"
        return PayloadError(f"task {self.task!r} cannot take these arguments: {reason}")

    def _reader(self, required: Sequence[str]) -> Callable[[bytes | str], Any]:
        # A struct, because msgspec fills one faster than a dict, and can refuse fields that it does not know.
        # A field left out is UNSET, whatever its type says: defaults are not validated.
        fields = [
            (name, kind) if name in required else (name, kind, UNSET) for name, kind in self._types.items()
        ]
        # It is called `_`, because within a class of any other name a parameter `__x` would be mangled.
        try:
            struct = msgspec.defstruct(
                "_", fields, forbid_unknown_fields=True, kw_only=True, eq=False, gc=False
            )
            return msgspec.json.Decoder(struct, dec_hook=decode_hook).decode
        except (TypeError, NameError, ValueError, RuntimeError) as error:
            raise ConfigurationError(
                f"task {self.task!r} has parameters that cannot be stored as JSON: {error}"
            ) from error

    def _read_partial(self) -> Callable[[bytes | str], Any]:
        if self._partial is None:
            self._partial = self._reader(())
        return self._partial

    def _expected(self) -> str:
        if not self.parameters:
            return "it takes no arguments"
        shown = ", ".join(name if name in self.required else f"{name}=…" for name in self.parameters)
        return f"it takes ({shown})"

    def _unknown(self, name: object) -> str:
        present = self._aliases.get(name) if isinstance(name, str) else None
        if present:
            return f"{name!r} any more: it is called {present!r} now"
        if name == self.context_parameter:
            return f"{name!r} to be given: the worker injects it"
        return shorten(name)


def at_index(index: int, error: PayloadError) -> PayloadError:
    """The same error, with the place of what it is about among many."""
    return type(error)(f"at index {index}: {error}")


_GOT_TEXT = ", got `str`"


def _described(hint: Any) -> str:
    """What a parameter takes, for a person who writes a value of it."""
    plain = _without_extras(hint)
    if isinstance(plain, type) and issubclass(plain, Enum):
        return "one of " + clean_text(", ".join(repr(member.value) for member in plain), 200)
    if plain is bool:
        return "true or false"
    return clean_text(_shown(plain) if type(plain) is type else str(plain), 200)


# -- reading a function --------------------------------------------------------------------------


def _declared_parameters(function: Callable[..., Any], task: str) -> list[inspect.Parameter]:
    try:
        declared = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError, NameError) as error:
        raise ConfigurationError(
            f"task {task!r}: the signature of {function!r} cannot be read: {error}"
        ) from error
    scope = getattr(function, "__qualname__", "").rpartition(".")[0]
    if declared and declared[0].name in ("self", "cls") and scope and not scope.endswith("<locals>"):
        raise ConfigurationError(
            f"task {task!r}: {_shown(function)} is a method, and a payload cannot carry its object; "
            "declare a function, or a staticmethod's function"
        )
    for each in declared:
        if each.kind in _REFUSED:
            spelling, instead = _REFUSED[each.kind]
            raise ConfigurationError(
                f"task {task!r}: {spelling.format(each.name)} cannot be a parameter of a task, because "
                f"a payload maps parameter names to values; {instead}"
            )
    return declared


_REFUSED = {
    inspect.Parameter.VAR_POSITIONAL: ("*{}", "use a parameter that takes a list"),
    inspect.Parameter.VAR_KEYWORD: ("**{}", "name the parameters, or use one that takes a dict"),
    inspect.Parameter.POSITIONAL_ONLY: ("the positional-only {!r}", "remove the `/` from the signature"),
}


def _hint_of(parameter: inspect.Parameter, function: Callable[..., Any], task: str) -> Any:
    if parameter.annotation is parameter.empty:
        return Any
    try:
        # One at a time, so that an error can name the parameter, and the return type need not resolve at all.
        hints = typing.get_type_hints(
            SimpleNamespace(__annotations__={parameter.name: parameter.annotation}),
            globalns=_globals_of(function),
            include_extras=True,
        )
    except Exception as error:  # evaluating an annotation runs code that may raise anything
        raise ConfigurationError(
            f"task {task!r}: the annotation {parameter.annotation!r} of parameter {parameter.name!r} "
            f"cannot be resolved: {type(error).__name__}: {error}; import or define the type "
            "at module level, outside `if TYPE_CHECKING`"
        ) from error
    return hints[parameter.name]


def _globals_of(function: Any) -> dict[str, Any]:
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    if not hasattr(function, "__globals__"):
        function = type(function).__call__  # an object that can be called
    return getattr(function, "__globals__", {})


def _context_parameter(
    declared: Sequence[inspect.Parameter], hints: Mapping[str, Any], context_type: type, task: str
) -> inspect.Parameter | None:
    for position, each in enumerate(declared):
        if _without_extras(hints[each.name]) is context_type:
            if position == 0:
                return each
            raise ConfigurationError(
                f"task {task!r}: {each.name!r} is a {context_type.__name__}, which must come first; "
                "move it there, or leave it out and use taskharbor.current_context()"
            )
    return None


def _without_extras(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def _caller(
    function: Callable[..., Any], context: inspect.Parameter | None
) -> Callable[[dict[str, Any], Any], Any]:
    if context is None:
        return lambda arguments, _context: function(**arguments)
    if context.kind is context.KEYWORD_ONLY:
        name = context.name
        return lambda arguments, given: function(**{name: given}, **arguments)
    return lambda arguments, given: function(given, **arguments)


def _storable(hint: Any, parameter: str, task: str) -> Any:
    """The annotation itself, once it is known that JSON can carry it."""
    try:
        unknown = _custom_type_in(msgspec.inspect.type_info(hint))
    except (TypeError, NameError, ValueError) as error:
        raise ConfigurationError(
            f"task {task!r}: parameter {parameter!r} has a type that cannot be stored as JSON: {error}"
        ) from error
    if unknown is not None:
        raise ConfigurationError(
            f"task {task!r}: parameter {parameter!r} has the type {_shown(unknown)}, which "
            "cannot be stored as JSON; use JSON types, a dataclass, a msgspec struct or a pydantic model, "
            "or pass an id and load the object in the task"
        )
    return hint


def _shown(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or repr(kind)


def _custom_type_in(info: Any) -> Any:
    """The first type that neither msgspec nor our hook can read, anywhere in the annotation."""
    stack, seen = [info], set()
    while stack:
        node = stack.pop()
        if isinstance(node, tuple):
            stack.extend(node)
        elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field) and id(node) not in seen:
            seen.add(id(node))
            if (
                isinstance(node, msgspec.inspect.CustomType)
                and node.cls is not object
                and not is_model(node.cls)
            ):
                return node.cls
            stack.extend(getattr(node, name) for name in node.__struct_fields__)
    return None


def _checked_aliases(
    aliases: Mapping[str, str] | None, parameters: Sequence[str], task: str
) -> dict[str, str]:
    if aliases is not None and not (
        isinstance(aliases, Mapping) and all(isinstance(old, str) for old in aliases)
    ):
        raise ConfigurationError(
            f"task {task!r}: parameter_aliases maps old names of parameters to present ones, "
            f'such as {{"recipient": "to"}}, not {shorten(aliases)}'
        )
    for old, present in (aliases or {}).items():
        if present not in parameters:
            raise ConfigurationError(
                f"task {task!r}: the alias {old!r} stands for {present!r}, which is no parameter of it; "
                "aliases map an old name to a present one"
            )
        if old in parameters:
            raise ConfigurationError(
                f"task {task!r}: the alias {old!r} is the name of a present parameter; "
                "an alias must be a name no longer used"
            )
    return dict(aliases or {})


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(map(repr, names[:-1])), repr(names[-1])]))
