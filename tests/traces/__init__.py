"""Tests of the recorder and of the replays of traces."""
