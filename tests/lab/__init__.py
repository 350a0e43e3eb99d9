"""Tests of the lab's parts that need no root."""
