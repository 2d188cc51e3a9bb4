"""What the tests and the benchmarks share, and the package does not need."""
