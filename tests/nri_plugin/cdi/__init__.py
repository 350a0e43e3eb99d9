"""Tests of the CDI specs that the agent reads and generates."""
