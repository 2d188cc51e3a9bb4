"""Many pictures at once: a group, its progress, and what a cancelled one leaves behind."""

from __future__ import annotations

from tempfile import TemporaryDirectory

from taskharbor import Harbor, Worker, WorkflowCancelled, group

SIZES = {"small": 64, "large": 1024}


def main(harbor: Harbor) -> None:
    @harbor.task(queue="pictures")
    async def resize(picture: int, size: str) -> str:
        return f"picture-{picture}-{SIZES[size]}.webp"

    workflow = group(resize.s(picture, size) for picture in range(100) for size in SIZES).enqueue()
    print(workflow.state, workflow.progress)
    Worker(harbor).drain_sync()
    files = workflow.result(timeout=0)  # in the order of the group, whichever was done first
    print(workflow.refresh().state, workflow.refresh().progress, files[:2])
    assert files == [f"picture-{n}-{pixels}.webp" for n in range(100) for pixels in (64, 1024)]

    # Parts of it are ordinary jobs, with options of their own.
    urgent = group(resize.using(priority=9).s(7, "small"), resize.s(7, "large")).enqueue()
    assert [(job.priority, str(job.state)) for job in urgent.jobs] == [(9, "ready"), (0, "ready")]
    urgent.cancel()
    try:
        urgent.result()
    except WorkflowCancelled as cancelled:
        print(f"{len(cancelled.job_ids)} jobs were cancelled")
    assert harbor.jobs.counts()["cancelled"] == 2


if __name__ == "__main__":
    with TemporaryDirectory() as folder, Harbor(f"sqlite:///{folder}/harbor.db") as store:
        main(store)
