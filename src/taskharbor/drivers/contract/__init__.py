"""The values that a driver's verbs exchange, a module for each group of verbs.

`taskharbor.drivers.base` offers all of them, beside the verbs.
"""
