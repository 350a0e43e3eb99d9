"""Reads the agent's objects from the API server, and writes them to it."""
