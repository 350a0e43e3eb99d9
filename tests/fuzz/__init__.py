"""Fuzzing of the parsers with hostile or broken bytes: each target is one parser and its
invariants.

    python -m tests.fuzz [TARGET...] [--seconds S]

A target is a plain function of bytes that raises only if an invariant is broken; documented
exceptions are caught inside it, by name. targets.py lists them; one.py runs one under atheris
(coverage-guided); test_fuzz.py runs all of them briefly, and replays `corpus/` without atheris.
"""
