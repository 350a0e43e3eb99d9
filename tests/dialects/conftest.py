"""The tests of a module share one cluster with the module's GPUs and every dialect on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.contract.dialects import DIALECTS
from tests.dialects.pods import remove
from tests.e2e.whole import Whole, running


@pytest.fixture(scope="module")
def whole(build_dir: Path, request: pytest.FixtureRequest) -> Iterator[Whole]:
    assert build_dir.is_dir()
    switched = [dialect.name for dialect in DIALECTS if dialect.switch]
    with running(request.module.GPUS, dialects=switched) as cluster:
        cluster.kubectl("create", "namespace", "gpu-workload")
        cluster.kubectl("wait", "--for=create", "-n=gpu-workload", "serviceaccount/default")
        yield cluster


@pytest.fixture
def empty(whole: Whole) -> Iterator[Whole]:
    """Return the cluster, without pods before the test and after it."""
    remove(whole)
    yield whole
    remove(whole)
