"""The REST interface: everything a harbor does, over HTTP.

This module imports nothing, so that the command line makes tokens without the web stack.
"""
