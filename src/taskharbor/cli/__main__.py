"""`python -m taskharbor.cli`"""

from taskharbor.cli.entry import main

main()
