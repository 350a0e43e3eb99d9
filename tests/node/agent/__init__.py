"""Tests of the agent's own limits, faults and restarts, and of NVIDIA's programs beside it."""
