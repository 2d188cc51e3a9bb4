"""Jobs in PostgreSQL: many workers on many machines share one database."""

from taskharbor.drivers.postgres.driver import PostgresDriver

__all__ = ["PostgresDriver"]
