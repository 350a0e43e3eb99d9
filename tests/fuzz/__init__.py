"""Fuzzing of the parsers with hostile or broken bytes. Each target is one parser and its
invariants.

    python -m tests.fuzz [TARGET...] [--seconds S]

A target is a function of bytes that raises only if an invariant is broken. It catches documented
exceptions by name. targets.py lists the targets, and one.py runs one under atheris, which is guided
by coverage. test_fuzz.py runs all of them briefly, and replays `corpus/` without atheris.
"""
