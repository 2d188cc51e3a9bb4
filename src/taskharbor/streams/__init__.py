"""Kafka and Redpanda: a worker that executes the messages of a topic, and a producer. Needs the extra `[kafka]`."""

from taskharbor.streams.replay import TopicReplay, TopicReplayed
from taskharbor.streams.worker import StreamWorker

__all__ = ["StreamWorker", "TopicReplay", "TopicReplayed"]
