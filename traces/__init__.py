"""Programs' calls of the driver, recorded and replayed through the library.

`python -m traces record` writes a trace and `python -m traces replay` plays one;
docs/development.md is the manual, and data/README.md describes the format of the files.
"""
