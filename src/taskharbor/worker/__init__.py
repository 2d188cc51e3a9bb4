"""The worker: fetcher → executor → committer, with a heartbeat."""

from taskharbor.worker.worker import Worker

__all__ = ["Worker"]
