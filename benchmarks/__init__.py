"""Benchmarks: TaskHarbor and its peers, measured in interleaved rounds. See README.md."""
