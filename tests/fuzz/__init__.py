"""What hostile or broken bytes do to the parsers: each target is one parser and what it promises.

    python -m tests.fuzz [TARGET...] [--seconds S | --runs N]

A target is a plain function of bytes that raises only where a promise is broken; documented
exceptions are caught inside it, by name. targets.py lists them; one.py runs one under atheris
(coverage-guided); test_fuzz.py runs all of them shortly, and replays `corpus/` without atheris.
"""
