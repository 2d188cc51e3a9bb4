"""Tools that the tests and the benchmarks share; the package does not need them."""
