"""Import a CSV file in chunks: a chain with a chord in it. One chunk fails, is retried, and the chain continues."""

from __future__ import annotations

import csv
from pathlib import Path
from tempfile import TemporaryDirectory

from taskharbor import Harbor, Worker, WorkflowStuck, chain, chord

CHUNK = 4


def main(harbor: Harbor, folder: Path) -> None:
    file = folder / "orders.csv"
    file.write_text("item,price\n" + "\n".join(f"item-{n},{n}" for n in range(1, 11)))
    known_currencies = ["EUR"]

    @harbor.task
    def import_chunk(path: str, first: int) -> dict[str, int]:
        if first == CHUNK and "USD" not in known_currencies:
            raise ValueError("prices in USD")
        with Path(path).open() as lines:
            rows = list(csv.DictReader(lines))[first : first + CHUNK]
        return {"rows": len(rows), "sum": sum(int(row["price"]) for row in rows)}

    @harbor.task
    def add_up(chunks: list[dict[str, int]]) -> dict[str, int]:
        return {name: sum(chunk[name] for chunk in chunks) for name in ("rows", "sum")}

    @harbor.task
    def report(total: dict[str, int], to: str) -> str:
        return f"{to}: {total['rows']} rows, {total['sum']} in all"

    # The key makes this one import, however often a user presses the button.
    chunks = [import_chunk.using(max_attempts=1).s(str(file), first) for first in range(0, 10, CHUNK)]
    importing = chain(chord(chunks, add_up.s()), report.s(to="sales@example.com"))
    workflow = importing.using(idempotency_key="orders-2026-01").enqueue()
    assert importing.using(idempotency_key="orders-2026-01").enqueue().existed

    Worker(harbor).drain_sync()
    try:
        workflow.result(timeout=0)
    except WorkflowStuck as stuck:
        print(f"{workflow.refresh().progress}; {stuck.job_ids == (workflow.jobs.ids[1],)}")

    known_currencies.append("USD")
    workflow.retry()  # runs only the failed jobs again
    Worker(harbor).drain_sync()
    print(workflow.result(timeout=0))
    assert workflow.result() == "sales@example.com: 10 rows, 55 in all"


if __name__ == "__main__":
    with TemporaryDirectory() as place, Harbor(f"sqlite:///{place}/harbor.db") as store:
        main(store, Path(place))
