"""`python -m taskharbor`, for an environment whose scripts are not on the PATH."""

from taskharbor.cli.entry import main

main()
