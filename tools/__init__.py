"""Programs of this repository that are not shipped: setup, lint, builds of what the lab runs."""
