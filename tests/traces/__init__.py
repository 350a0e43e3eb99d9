"""What programs ask of the driver, recorded call by call, and replayed through the library.

`python -m tests.traces record` writes a trace and `python -m tests.traces replay` plays one;
docs/traces.md says how to use them, and data/README.md describes the format of the files.
"""
