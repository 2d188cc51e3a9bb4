"""Drivers: what stores jobs. They hold no policy."""
