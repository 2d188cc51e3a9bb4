"""The command `taskharbor`, whose supervisor has more time for its last duties than a user would wait for."""

from __future__ import annotations

from taskharbor.cli import main
from taskharbor.worker.supervisor import parent, store_duties

if __name__ == "__main__":
    # A machine may be busy, and its disk may stand still for a while.
    parent.SETTLE_SECONDS = parent.LAST_MESSAGES_SECONDS = store_duties.CLOSE_SECONDS = 20.0
    main()
