"""A process that stores the messages of a topic as jobs, for tests that kill it."""

from __future__ import annotations

import sys

from taskharbor import Harbor
from taskharbor.streams import StreamWorker

url, bootstrap, topic, group = sys.argv[1:5]
StreamWorker(
    Harbor(url),
    brokers=bootstrap,
    topic=topic,
    group=group,
    ingest=True,
    settings={"session.timeout.ms": 3_000, "heartbeat.interval.ms": 500},
).run_sync()
