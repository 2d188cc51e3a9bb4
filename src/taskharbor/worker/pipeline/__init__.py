"""The way of a job through a worker: claim, execute, commit."""
