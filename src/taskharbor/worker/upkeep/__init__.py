"""The parts of a worker that run beside its jobs: maintenance, presence, retirement, and watches."""
