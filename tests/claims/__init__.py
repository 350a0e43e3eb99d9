"""Tests of the claims' templates, without an API server."""
