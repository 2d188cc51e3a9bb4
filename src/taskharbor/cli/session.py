"""What every command gets: the harbor that the user named, and the screen to print on."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

from taskharbor.cli.screen import Screen

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

P = ParamSpec("P")
T = TypeVar("T")


class Session:
    """One run of one command."""

    def __init__(self, app: str | None, url: str | None, screen: Screen, include: Sequence[str] = ()) -> None:
        self.include = tuple(include)  # modules with further tasks of the application
        self.app = app or None  # `--app ''` does without the one of the environment
        self.url = url or None
        self.screen = screen

    def open(self, *, create: bool = False) -> Harbor:
        """Open the harbor that the user named. Without `create`, a store in a file must exist."""
        if self.app is not None:
            harbor = self._open_app(self.app)
        else:
            from taskharbor.client.harbor import Harbor

            harbor = Harbor(self.url)
        harbor.command_words = self.words
        if not create:
            self._refuse_missing_file(harbor)
        return harbor

    @property
    def words(self) -> str:
        """What a line to copy ends with, so that it acts on the same store: the options that this one was given.

        What the environment says, it says to the pasted line as well.
        """
        from shlex import quote

        from taskharbor.telemetry.logs import masked_url

        context = click.get_current_context(silent=True)
        source = None if context is None else context.get_parameter_source("app")
        app = None if source is click.core.ParameterSource.ENVIRONMENT else self.app
        words = [] if app is None else ["-A", app]
        words += [] if self.url is None else ["--url", masked_url(self.url)]
        return "".join(f" {quote(word)}" for word in words)

    def _refuse_missing_file(self, harbor: Harbor) -> None:
        """Refuse to create a store by reading: a mistyped name would look like an empty store."""
        from taskharbor.drivers.sqlite import SQLiteDriver

        if not isinstance(harbor.driver, SQLiteDriver) or os.path.exists(harbor.driver.path):
            return
        named = self.app or self.url or os.environ.get("TASKHARBOR_URL")
        program = click.get_current_context().find_root().info_name or "taskharbor"
        migrate = f"{program.removesuffix(' harbor')} migrate"  # Django's own, below `manage.py harbor`
        raise click.ClickException(
            f"{'' if named else 'no store was named and '}{harbor.driver.path} does not exist; "
            f"{'check the name' if named else 'give --url or --app'}, or make it with `{migrate}`"
        )

    def run(self, work: Callable[[Harbor], Awaitable[T]], *, create: bool = False) -> T:
        """Do the work with the harbor, and close it."""
        import asyncio

        from taskharbor.sync import fastest_loop

        async def whole() -> T:
            async with self.open(create=create) as harbor:
                return await work(harbor)

        with asyncio.Runner(loop_factory=fastest_loop) as runner:
            return runner.run(whole())

    def _open_app(self, app: str) -> Harbor:
        if self.url is not None:
            os.environ["TASKHARBOR_URL"] = self.url  # an application's Harbor() reads it
        harbor = load_app(app, self.include)
        if self.url is not None and harbor.url != self.url:
            from taskharbor.telemetry.logs import masked_url

            raise click.UsageError(
                f"{app} keeps its jobs in {masked_url(harbor.url)}, not in {masked_url(self.url)}: leave --url out, "
                "declare Harbor() without a URL so that --url decides, or give --app '' to do without the application"
            )
        return harbor


def load_app(app: str, include: Sequence[str] = ()) -> Harbor:
    """The Harbor that `module:object` names, with the modules that it includes, and these.

    The current folder is looked in first, as with `python -m`.
    """
    from taskharbor.client.harbor import Harbor, checked_modules

    module_name, colon, path = app.partition(":")
    if not module_name or not colon or not path:
        raise click.UsageError(f"--app takes module:object, such as app:harbor, not {app!r}")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    found = _import(module_name, app)
    for name in path.split("."):
        if not hasattr(found, name):
            raise click.ClickException(
                f"{module_name} has no {path!r}; {_harbors_in(module_name) or 'it holds no Harbor'}"
            )
        found = getattr(found, name)
    if not isinstance(found, Harbor):
        raise click.ClickException(
            f"{app} is not a Harbor but a {type(found).__name__}; "
            f"{_harbors_in(module_name) or 'name the object made by Harbor(…)'}"
        )
    found.made_in.insert(0, module_name)
    found.include = tuple(dict.fromkeys([*found.include, *checked_modules(include)]))
    found._import_included()
    return found


def _import(module_name: str, app: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            hint = f"; write it without .py: {app.replace('.py:', ':', 1)}" if ".py:" in app else ""
            raise click.ClickException(
                f"no module is called {error.name!r} (--app {app}) in {os.getcwd()} or on Python's path{hint}"
            ) from None
        raise click.ClickException(f"{module_name} cannot be imported: {error}{_place(error)}") from error
    except SystemExit as error:
        raise click.ClickException(
            f"{module_name} ends the program when it is imported{_place(error)}; what it runs belongs under "
            'if __name__ == "__main__":'
        ) from error
    except Exception as error:
        raise click.ClickException(
            f"{module_name} cannot be imported: {type(error).__name__}: {error}{_place(error)}"
        ) from error


def _place(error: BaseException) -> str:
    """Return where in the application's own code the error happened; a syntax error says that itself."""
    if isinstance(error, SyntaxError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<") and frame.filename != __file__]
    own = [frame for frame in own if os.path.dirname(importlib.__file__) not in frame.filename] or own
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _harbors_in(module_name: str) -> str:
    from taskharbor.client.harbor import Harbor

    names = [name for name, value in vars(sys.modules[module_name]).items() if isinstance(value, Harbor)]
    return f"perhaps you mean {module_name}:{names[0]}" if names else ""


def with_session(command: Callable[Concatenate[Session, P], None]) -> Callable[..., None]:
    """Give a command --app, --url and --json, as a `Session`."""

    @click.option(
        "--app",
        "-A",
        metavar="MODULE:OBJECT",
        envvar="TASKHARBOR_APP",
        show_envvar=True,
        help="The application's Harbor.",
    )
    @click.option(
        "--url",
        metavar="URL",
        help="The store, such as sqlite:///harbor.db.  [env var: TASKHARBOR_URL]",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
    @functools.wraps(command)
    def with_options(*args: Any, app: str | None, url: str | None, as_json: bool, **kwargs: Any) -> None:
        command(Session(app, url, Screen(as_json=as_json)), *args, **kwargs)

    return with_options
