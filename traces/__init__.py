"""Records a program's calls of the driver, and replays them through the library.

`python -m traces record` writes traces and `python -m traces replay` replays them.
docs/recipes/development.md is the manual, and data/README.md describes the format of the files.
"""
