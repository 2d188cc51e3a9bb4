"""Handlers in processes of their own: warm, reused, and killed when they do not end."""
