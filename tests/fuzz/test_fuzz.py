"""Every target runs for ten seconds, and the corpus is replayed without the fuzzer."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.fuzz import __main__ as fuzz
from tests.fuzz.targets import TARGETS, corpus

SECONDS = 10
AT_ONCE = 2


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Future[fuzz.Outcome]]]:
    """Submit all targets before the first test. Two run at a time."""
    if importlib.util.find_spec("atheris") is None:
        reason = "atheris is not installed (make setup installs it where it has a wheel)"
        if os.environ.get("CI") == "true":
            pytest.fail(f"fuzzing may not skip under CI=true: {reason}", pytrace=False)
        pytest.skip(reason)
    crew = ThreadPoolExecutor(AT_ONCE)
    limits = [f"-max_total_time={SECONDS}"]
    yield {name: crew.submit(fuzz.run, name, limits) for name in TARGETS}
    crew.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_undocumented_escapes(name: str, outcomes: dict[str, Future[fuzz.Outcome]]) -> None:
    outcome = outcomes[name].result()
    assert not outcome.finding, outcome.finding
    assert outcome.executions > 0


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_again(name: str) -> None:
    inputs = corpus(name)
    assert inputs
    for data in inputs:
        TARGETS[name].run(data)
