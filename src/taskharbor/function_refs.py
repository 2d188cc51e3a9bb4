"""Find a function in another process by importing its module.

Only the address of a handler is sent to another process. So importing its module must define the function, and
must not start the program: an import that runs a worker or enqueues a job is refused.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from msgspec import Struct

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError

MAIN_NAMES = (
    "__main__",
    "__mp_main__",
)  # the latter in a process that runs the program for its functions only

_importing = False


class FunctionRef(Struct, frozen=True):
    """The module and the qualified name of a function."""

    module: str
    qualname: str

    def __str__(self) -> str:
        return f"{self.module}.{self.qualname}"


class MainModule(Struct, frozen=True):
    """How the program was started: `python -m name`, or `python path`."""

    name: str | None = None
    path: str | None = None


# -- where it is found ---------------------------------------------------------------------------


def address_of(function: Callable[..., Any], what: str) -> FunctionRef:
    """Return the address of a function, or raise why an import cannot find it; `what` names it in the error."""
    module = getattr(function, "__module__", None)
    qualname = getattr(function, "__qualname__", None)
    remedy = "declare it with `def` at the top level of a module that can be imported"
    if not module or not qualname:
        raise ConfigurationError(
            f"{what} is {shorten(function)}, which has no name of its own to be found by; {remedy}"
        )
    if "<" in qualname:  # <lambda>, or inside of a function: <locals>
        raise ConfigurationError(
            f"{what} is {module}.{qualname}, which is made while a function runs, so that another process cannot "
            f"find it by importing {module}; {remedy}"
        )
    if module in MAIN_NAMES and main_module() is None:
        raise ConfigurationError(
            f"{what} was typed in (a notebook, a prompt, `python -c`), so there is no file that another "
            f"process could import it from; {remedy}"
        )
    return FunctionRef(module, qualname)


def main_module() -> MainModule | None:
    """Return how another process can load this program's main module; None if it has no file."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in MAIN_NAMES:
        return MainModule(name=spec.name)
    path = getattr(main, "__file__", None)
    if path is None or not os.path.isfile(path):
        return None
    return MainModule(path=os.path.abspath(path))


# -- finding it ----------------------------------------------------------------------------------


def find(address: FunctionRef) -> Any:
    """Import the module, and return what it defines under that name."""
    found: Any = import_module(address.module)
    for name in address.qualname.split("."):
        if not hasattr(found, name):
            raise ConfigurationError(
                f"importing {address.module} makes no {address.qualname!r}; declare it at the module's top level"
            )
        found = getattr(found, name)
    return found


def import_module(name: str) -> ModuleType:
    """Import a module for its declarations; refuse enqueueing and running workers during the import."""
    global _importing  # noqa: PLW0603 - one for each process
    if name in sys.modules:
        return sys.modules[name]
    was, _importing = _importing, True
    try:
        return importlib.import_module(name)
    finally:
        _importing = was


def load_main(main: MainModule) -> None:
    """Run the program's main module for its declarations. `__name__` is not `__main__`, so code under
    `if __name__ == "__main__":` does not run."""
    global _importing  # noqa: PLW0603 - one for each process
    module = ModuleType("__mp_main__")
    if main.name is not None:
        from importlib.util import find_spec

        spec = find_spec(main.name)
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"no module is called {main.name!r}", name=main.name)
        code = spec.loader.get_code(main.name)  # type: ignore[attr-defined]
        module.__spec__, module.__package__, module.__file__ = spec, spec.parent, spec.origin
    else:
        assert main.path is not None, "a main module has a name or a path"
        with open(main.path, "rb") as file:
            code = compile(file.read(), main.path, "exec")
        module.__file__ = main.path
    for name in MAIN_NAMES:
        sys.modules[name] = module
    was, _importing = _importing, True
    try:
        exec(code, module.__dict__)
    finally:
        _importing = was


def forbid_during_import(what: str) -> None:
    """Raise during such an import: without the guard, every process would start the program again."""
    if _importing:
        raise ConfigurationError(
            f"{what} while a handler's process imports this program for its tasks; put what the program does "
            'under `if __name__ == "__main__":`'
        )
