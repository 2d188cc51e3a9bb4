"""`retries="topics"`: failed messages wait in retry topics, and the brokers keep everything. No store is involved."""
