"""What systemd and a container's probe see."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from taskharbor.errors import ConfigurationError
from taskharbor.worker.supervisor.health import Health, HealthFile, HealthPort, Systemd
from tests.postgres.server import free_port
from tests.supervisor.conftest import Shop
from tests.worker.stage import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX")


class Patient:
    def __init__(self, ok: bool = True) -> None:
        self.ok = ok

    def look(self) -> Health:
        return Health(self.ok, "well" if self.ok else "ill")


def asked(port: int, path: str = "/") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


# -- the parts --


async def test_the_port_answers_200_while_all_is_well_and_503_otherwise():
    patient, port = Patient(), free_port()
    serving = asyncio.create_task(HealthPort("127.0.0.1", port, patient.look).run())
    await until(lambda: _listens(port))
    assert await asyncio.to_thread(asked, port) == (200, "well\n")
    patient.ok = False
    assert await asyncio.to_thread(asked, port, "/healthz") == (503, "ill\n")
    serving.cancel()


async def test_whoever_asks_badly_gets_no_answer_and_does_no_harm():
    port = free_port()
    serving = asyncio.create_task(HealthPort("127.0.0.1", port, Patient().look).run())
    await until(lambda: _listens(port))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"x" * 100_000)
    with suppress(ConnectionError):  # closed, with or without a reset
        assert await reader.read() == b""
    writer.close()
    assert await asyncio.to_thread(asked, port) == (200, "well\n")
    serving.cancel()


async def test_a_port_that_is_taken_is_one_clear_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"no health port at 127.0.0.1:{port}: .*name another"):
            await HealthPort("127.0.0.1", port, Patient().look).run()


async def test_the_file_is_fresh_only_while_all_is_well_and_gone_at_the_end(tmp_path: Path):
    path, patient = tmp_path / "health", Patient(ok=False)
    refreshing = asyncio.create_task(HealthFile(path, patient.look).run())
    await until(path.exists)
    assert path.stat().st_mtime == 0
    patient.ok = True
    await until(lambda: path.stat().st_mtime > time.time() - 60)
    refreshing.cancel()
    await asyncio.wait([refreshing])
    assert not path.exists()


async def test_a_file_that_cannot_be_written_is_told_at_once(tmp_path: Path):
    with pytest.raises(OSError, match="No such file"):
        await HealthFile(tmp_path / "nowhere" / "health", Patient().look).run()


@pytest.mark.parametrize("dangling", [False, True])
async def test_the_file_is_never_written_through_a_symbolic_link(tmp_path: Path, dangling: bool):
    """A folder such as /tmp lets any user put one there before the supervisor starts."""
    path, target = tmp_path / "health", tmp_path / "target"
    if not dangling:
        target.write_text("another's")
        os.utime(target, (1, 1))
    path.symlink_to(target)
    with pytest.raises(ConfigurationError, match=f"{path} is a symbolic link; name a regular file"):
        await asyncio.wait_for(HealthFile(path, Patient().look).run(), 60)
    assert path.is_symlink()
    assert target.exists() is not dangling
    assert dangling or target.stat().st_mtime == 1


async def test_a_file_that_becomes_a_symbolic_link_grows_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("taskharbor.worker.supervisor.health.REFRESH_SECONDS", 0.01)
    path, target = tmp_path / "health", tmp_path / "target"
    target.touch()
    os.utime(target, (1, 1))
    refreshing = asyncio.create_task(HealthFile(path, Patient().look).run())
    await until(path.exists)
    path.unlink()
    path.symlink_to(target)
    await until(lambda: "the health file cannot be written" in caplog.text)
    refreshing.cancel()
    await asyncio.wait([refreshing])
    assert target.stat().st_mtime == 1


async def test_a_pipe_in_the_place_of_the_file_does_not_hold_up_the_supervisor(tmp_path: Path):
    path = tmp_path / "health"
    os.mkfifo(path)
    with pytest.raises((ConfigurationError, OSError)):
        await HealthFile(path, Patient().look).run()
    assert path.is_fifo()


async def test_no_other_user_can_freshen_the_file(tmp_path: Path):
    path = tmp_path / "health"
    before = os.umask(0)
    try:
        refreshing = asyncio.create_task(HealthFile(path, Patient().look).run())
        await until(path.exists)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644
    refreshing.cancel()
    await asyncio.wait([refreshing])


@pytest.mark.parametrize("abstract", [False, True])
async def test_systemd_is_told_once_that_all_is_ready_and_then_of_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
):
    if abstract and not sys.platform.startswith("linux"):
        pytest.skip("only Linux has abstract addresses")
    address = f"@taskharbor-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    patient, told = Patient(ok=False), []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{address[1:]}" if abstract else address)
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setenv("WATCHDOG_USEC", "60000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        notifying = Systemd.from_environment(patient.look)
        assert notifying is not None
        running = asyncio.create_task(notifying.run())

        async def hears(word: str) -> None:
            async with asyncio.timeout(60):
                while word not in told:
                    told.append((await asyncio.get_running_loop().sock_recv(systemd, 1000)).decode())

        await hears("STATUS=ill")
        assert told == ["STATUS=ill"]
        patient.ok = True
        await hears("READY=1")
        told.remove("READY=1")
        for _ in range(3):
            await hears("WATCHDOG=1")
            told.remove("WATCHDOG=1")
        assert "READY=1" not in told
        running.cancel()
        notifying.stopping()
        await hears("STOPPING=1")


def test_without_systemd_nobody_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert Systemd.from_environment(Patient().look) is None


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# -- the whole --


def test_a_supervisor_tells_everybody_of_its_health(small: Shop, monkeypatch: pytest.MonkeyPatch):
    port, file = free_port(), small.folder / "health"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(small.folder / "notify"))
        systemd.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(small.folder / "notify"))
        job = small.harbor.enqueue("until_released")
        parent = small.started(processes=1, grace_seconds=60, health_file=file, health_port=port)
        while systemd.recv(1000) != b"READY=1":
            pass
        assert asked(port) == (200, "1 of 1 worker process is at work\n")
        small.wait(lambda: file.stat().st_mtime > time.time() - 60, "the health file")
        small.wait(lambda: small.executions()[0] == 1, "the execution")
        parent.send_signal(signal.SIGTERM)
        while systemd.recv(1000) != b"STOPPING=1":
            pass
        assert asked(port) == (503, "stopping\n")
        (small.folder / "release").touch()
        assert parent.wait(60) == 0
        assert not file.exists()
        job.result(timeout=60)


# -- a worker without a supervisor ---------------------------------------------------------------


def test_a_worker_alone_answers_on_its_port_and_touches_its_file(small: Shop):
    port = free_port()
    worker = small.start(health_port=port, health_file="health", grace_seconds=60)
    small.wait(lambda: _listens(port) and asked(port) == (200, "the worker is at work\n"), "the answer")
    small.wait(lambda: (small.folder / "health").stat().st_mtime > 1, "the file")
    small.harbor.enqueue("until_released")
    small.wait(lambda: small.executions()[0] == 1, "the execution")
    worker.send_signal(signal.SIGTERM)
    small.wait(lambda: asked(port) == (503, "the worker is stopping\n"), "the stop")
    (small.folder / "release").touch()
    assert worker.wait(60) == 0, small.errors()
    assert not (small.folder / "health").exists()


def test_a_worker_alone_tells_systemd(small: Shop, monkeypatch: pytest.MonkeyPatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(small.folder / "notify"))
        listener.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(small.folder / "notify"))
        worker = small.start()
        told = []
        while "READY=1" not in told:
            told.append(listener.recv(1000).decode())
        worker.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in told:
            told.append(listener.recv(1000).decode())
        assert worker.wait(60) == 0, small.errors()


def test_a_port_that_is_taken_ends_a_worker_alone_with_one_line(small: Shop):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert small.start(health_port=port).wait(60) == 1
    [error] = [line for line in small.errors().splitlines() if line.startswith("Error: ")]
    assert f"no health port at 127.0.0.1:{port}" in error


@pytest.mark.parametrize(
    ("processes", "told"),
    [
        ({}, "the worker is waiting for the store\n"),
        ({"processes": 1}, "0 of 1 worker process are at work; waiting for the store\n"),
    ],
    ids=["alone", "supervised"],
)
def test_a_store_that_is_away_at_the_start_makes_nobody_ill(
    small: Shop, processes: dict[str, int], told: str
):
    """A restart would not bring it back."""
    port = free_port()
    small.url = f"postgresql://127.0.0.1:{free_port()}/nothing"
    worker = small.start(health_port=port, **processes)
    small.wait(lambda: _listens(port) and asked(port) == (200, told), "the answer")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0, small.errors()
