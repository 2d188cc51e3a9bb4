"""The whole contract with successes that share a row from the very first one on. Only in the long form."""

from __future__ import annotations

import os

from taskharbor import conformance
from tests.postgres.test_settles import another_sharing, sharing

if "TASKHARBOR_FAULT_RUNS" in os.environ:
    TestSharing = conformance.suite(sharing, another=another_sharing)
