"""Programs of this repository that are not shipped: setup, lint, builds of what the lab runs.

Uses only the contract; lab, bench, tests and the Makefile use it.
"""
