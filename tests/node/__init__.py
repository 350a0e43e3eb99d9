"""Tests on a real, private containerd."""
