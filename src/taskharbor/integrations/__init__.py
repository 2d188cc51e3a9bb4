"""What makes a harbor at home in other people's frameworks. Each module imports its framework, and nothing else does."""
