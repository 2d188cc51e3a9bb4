"""`taskharbor serve`"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Literal

import click

from taskharbor.cli.parameters import duration
from taskharbor.cli.session import Session, with_session
from taskharbor.telemetry.metrics.catalogue import PREFIX

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor


class CannotListen(click.ClickException):
    """The address is in use, or is not of this machine."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} cannot be listened on; choose another port with --port")


def require_server(who: str) -> None:
    """Say in one line what to install, where the extra `server` is missing."""
    try:
        import uvicorn  # noqa: F401

        import taskharbor.server.app  # noqa: F401
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"{who} the extra: pip install 'taskharbor[server]' ({error.name} is missing)"
        ) from None


LEVELS = ["debug", "info", "warning", "error"]


@click.command
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8400, show_default=True, help="0: any free one."
)
@click.option(
    "--http-allow",
    multiple=True,
    metavar="HOST[:PORT]",
    help="Accept HTTP jobs for this address as well; workers need this option too.  [env var: TASKHARBOR_HTTP_ALLOW]",
)
@click.option(
    "--trusted-proxy",
    multiple=True,
    metavar="ADDRESS[/BITS]",
    help="Take the client's address from the X-Forwarded-For of this proxy.  [env var: TASKHARBOR_TRUSTED_PROXY]",
)
@click.option(
    "--max-connections",
    type=click.IntRange(1),
    default=500,
    show_default=True,
    help="Maximum number of connections; one client has at most half of them.",
)
@click.option(
    "--path-prefix",
    default="",
    metavar="PATH",
    help="The path that a proxy serves it below, such as /harbor; the proxy may remove it or not.",
)
@click.option(
    "--metrics-prefix",
    metavar="TEXT",
    help='Begin the names at /metrics with this; with "" they are bare.  [default: taskharbor_]',
)
@click.option(
    "--grace-seconds",
    type=duration,
    default="10",
    show_default=True,
    help="How long requests may take to finish at a shutdown.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="How log lines look, on standard error.  [default: text]",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@with_session
def serve(
    session: Session,
    host: str,
    port: int,
    http_allow: tuple[str, ...],
    trusted_proxy: tuple[str, ...],
    max_connections: int,
    path_prefix: str,
    metrics_prefix: str | None,
    grace_seconds: float,
    log_format: Literal["text", "json"] | None,
    log_level: str,
) -> None:
    """Serve the dashboard and the REST interface.

    The dashboard is at /, the documentation of REST at /docs. The server executes no jobs: `taskharbor worker`
    does. Without a token (see `taskharbor token create`) it accepts requests only from this machine, and every
    caller there may do everything. Make a token before you put a proxy in front of it.
    SIGTERM or SIGINT (Ctrl-C) lets requests finish and then stops the server.

    \b
    Examples:
      taskharbor serve --url sqlite:///harbor.db
      taskharbor serve -A app:harbor --host 0.0.0.0 --port 8400
    """
    from taskharbor.telemetry import logs

    logs.configure(log_format or ("json" if session.screen.as_json else "text"), log_level)
    require_server("serving needs")

    from taskharbor.cli.work_options import open_to_http_jobs

    open_to_http_jobs(http_allow)
    prefix = PREFIX
    if metrics_prefix is not None:
        from taskharbor.telemetry.metrics.exposition import checked_prefix

        prefix = checked_prefix(metrics_prefix)

    async def work(harbor: Harbor) -> None:
        from taskharbor.client.naming import words_for_others

        harbor.command_words = words_for_others(harbor, session.app)
        await serve_harbor(
            harbor, host, port, grace_seconds, trusted_proxy, max_connections, prefix, path_prefix
        )

    session.run(work, create=True)


def _allow_only_this_machine(host: str, *, behind_proxy: bool) -> None:
    """Without a token every caller may do everything, so only this machine is served, and the log says so."""
    from taskharbor.server.auth import is_loopback
    from taskharbor.server.errors import logger

    if not is_loopback(host):
        raise click.ClickException(
            f"the store has no token, so every caller that reaches {host} could do everything: make one with "
            "`taskharbor token create`, or serve only this machine, with --host 127.0.0.1"
        )
    if behind_proxy:
        raise click.ClickException(
            "the store has no token, so every client of the trusted proxy could do everything: make one "
            "with `taskharbor token create`"
        )
    logger.warning(
        "the store has no token: only this machine is served, and every caller on it may do everything; make one "
        "with `taskharbor token create` before you put a proxy in front of this server"
    )


async def serve_harbor(
    harbor: Harbor,
    host: str,
    port: int,
    grace_seconds: float,
    trusted_proxy: tuple[str, ...],
    max_connections: int,
    metrics_prefix: str,
    path_prefix: str = "",
) -> None:
    """Serve the REST interface and the dashboard until a signal comes."""
    import uvicorn

    from taskharbor.drivers.typed_records import TOKENS
    from taskharbor.server.app import application
    from taskharbor.server.clients import trusted_proxies
    from taskharbor.server.connections import Connections, guarded
    from taskharbor.server.errors import logger
    from taskharbor.server.routing import Prefixed, checked_path_prefix

    proxies = trusted_proxies(trusted_proxy)
    path_prefix = checked_path_prefix(path_prefix)
    await harbor.driver.open()
    is_open = not await TOKENS.all(harbor.driver)
    if is_open:
        _allow_only_this_machine(host, behind_proxy=bool(proxies))
    app = application(
        harbor, open_on_loopback=is_open, trusted_proxies=trusted_proxy, metrics_prefix=metrics_prefix
    )

    class Server(uvicorn.Server):
        """A server that ends the event streams when it stops: they never end by themselves."""

        def handle_exit(self, sig: int, frame: Any) -> None:
            app.state.feed.stop()
            super().handle_exit(sig, frame)

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            for server in self.servers:
                for each in server.sockets:
                    address, bound = each.getsockname()[:2]
                    shown = f"[{address}]" if ":" in address else address
                    logger.info("serving on http://%s:%d%s, documented at /docs", shown, bound, path_prefix)

    config = uvicorn.Config(
        Prefixed(app, path_prefix),
        host=host,
        port=port,
        http=guarded(Connections(max_connections, proxies)),
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the application reads them, from the proxies of --trusted-proxy
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=max(1, round(grace_seconds)),
    )
    # uvicorn raises the signal again once it has stopped. Here the stop is what was asked for: close the store and
    # exit with status 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server = Server(config)
    try:
        await server.serve()
    except SystemExit as error:
        raise CannotListen(host, port) from error
    if not server.started:
        raise CannotListen(host, port)
