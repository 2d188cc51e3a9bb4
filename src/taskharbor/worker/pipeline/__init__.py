"""The stages that a job passes in a worker: claim, execute, commit."""
