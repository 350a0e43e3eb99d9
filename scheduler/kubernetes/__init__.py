"""Translates between objects of the API server and the core's values."""
