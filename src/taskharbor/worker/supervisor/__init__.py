"""The supervisor: `taskharbor worker --processes N`, a parent that keeps N workers alive and their leases extended."""
