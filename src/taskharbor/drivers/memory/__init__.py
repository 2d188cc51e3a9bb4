"""The memory driver: the contract in plain dictionaries, for tests and for reading."""

from taskharbor.drivers.memory.driver import MemoryDriver

__all__ = ["MemoryDriver"]
