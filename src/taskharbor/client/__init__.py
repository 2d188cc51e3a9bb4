"""The client: declaring tasks, enqueueing jobs, and looking after them."""
