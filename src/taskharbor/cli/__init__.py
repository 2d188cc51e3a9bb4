"""The command line, `taskharbor`. Only click is imported here: `--help` and completion answer at once."""

from taskharbor.cli.entry import cli, main

__all__ = ["cli", "main"]
