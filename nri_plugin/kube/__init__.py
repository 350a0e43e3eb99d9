"""Reads from the API server for the agent, and publishes there."""
