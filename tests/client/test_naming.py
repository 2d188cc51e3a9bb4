"""What a line that is offered for copying ends with: the store, as a command line names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskharbor import Harbor
from taskharbor.client.naming import store_words, words_for_others
from taskharbor.drivers.memory import MemoryDriver

SECRET = "postgresql://ada:s3cret@db.example:5432/shop"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TASKHARBOR_URL", raising=False)


def test_url_is_named_without_its_password():
    assert store_words(Harbor(SECRET)) == " --url 'postgresql://ada:***@db.example:5432/shop'"
    assert "s3cret" not in store_words(Harbor("postgresql://db/shop?user=ada&password=s3cret"))


def test_file_is_named_as_seen_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "a b"
    folder.mkdir()
    monkeypatch.chdir(folder)
    url = f"sqlite:///{tmp_path}/a%20b/harbor.db"
    assert store_words(Harbor("sqlite:///harbor.db")) == f" --url {url}"
    assert store_words(Harbor()) == f" --url sqlite:///{tmp_path}/a%20b/taskharbor.db"
    assert (
        store_words(Harbor("sqlite:///harbor.db?synchronous=normal")) == f" --url '{url}?synchronous=normal'"
    )
    monkeypatch.chdir(tmp_path)
    assert Harbor(url).driver.path == str(folder / "harbor.db")  # type: ignore[attr-defined]


def test_store_that_no_command_can_name_is_left_out():
    assert store_words(Harbor("memory://")) == ""
    assert store_words(Harbor(driver=MemoryDriver())) == ""


def test_application_stands_for_its_store_unless_the_environment_names_that(monkeypatch: pytest.MonkeyPatch):
    assert words_for_others(Harbor(SECRET), "shop:harbor") == " -A shop:harbor"
    monkeypatch.setenv("TASKHARBOR_URL", SECRET)
    masked = " --url 'postgresql://ada:***@db.example:5432/shop'"
    assert words_for_others(Harbor(), "shop:harbor") == f" -A shop:harbor{masked}"
    assert words_for_others(Harbor(), None) == masked


async def test_sentence_of_why_has_a_line_for_its_own_store(tmp_path: Path):
    async with Harbor(f"sqlite:///{tmp_path}/harbor.db") as harbor:
        await harbor.amigrate()
        job = await harbor.aenqueue("t", queue="mail")
        await harbor.queues.apause("mail")
        sentence = str(await job.awhy())
        assert sentence.endswith(
            f": resume it with taskharbor queue resume mail --url sqlite:///{tmp_path}/harbor.db"
        )
        await harbor.queues.aresume("mail")
        assert str(await job.awhy()).endswith(": start one with taskharbor worker -A … --queues mail")
        harbor.command_words = " -A shop:harbor"
        assert str(await job.awhy()).endswith(
            ": start one with taskharbor worker -A shop:harbor --queues mail"
        )
        await harbor.jobs.acancel(job.id)
        assert str(await job.awhy()).endswith(
            f"; run it again with taskharbor job retry {job.id} -A shop:harbor"
        )
