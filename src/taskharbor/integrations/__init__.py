"""A harbor in other people's frameworks. Each module imports its framework; nothing else does."""
