"""Programs of this repository that are not shipped: setup, lint, builds of what the lab runs.

Uses the contract alone; lab, bench and the Makefile use it.
"""
