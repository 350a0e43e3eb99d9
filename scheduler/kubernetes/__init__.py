"""Between objects of the API server and the core's values.

Uses scheduler.dialects and scheduler.core; every layer above uses it.
"""
