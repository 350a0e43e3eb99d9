"""The agent within the limit of open files that its pod has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lab.node.catalogue import PYTHON_IMAGE
from lab.node.containerd_config import Options
from lab.node.cri import CriError, Process
from lab.node.lab import Lab
from tests.node.conftest import GIB
from tests.node.test_operations import get, sample

pytestmark = pytest.mark.node

_CONTAINERS = 40


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab([80 * GIB], options=Options(request_timeout_s=8)) as lab:
        yield lab


def _start_all(lab: Lab, stack: ExitStack) -> list[str]:
    """Many shares of one GPU; return the errors of those that do not start."""
    failures = []
    shares = {f"c{number}": [(0, GIB, 1)] for number in range(_CONTAINERS)}
    pod = stack.enter_context(lab.pod("many", lab.share(shares)))
    for name in shares:
        try:
            pod.run(name, Process(PYTHON_IMAGE))
        except CriError as error:
            failures.append(str(error))
    return failures


def test_a_low_soft_limit_of_open_files_is_raised(lab: Lab) -> None:
    """containerd 2 and systemd set such a limit. Here it is scaled to fewer containers."""
    lab.start_agent(limiter=("prlimit", "--nofile=100:4096"))
    with ExitStack() as stack:
        assert _start_all(lab, stack) == []
        lab.wait_until(
            lambda: sample(lab, "gpuslice_containers_with_grant") == _CONTAINERS, "all shares"
        )
        lab.wait_until(
            lambda: sample(lab, "gpuslice_containers_not_measured") == 0, "all to be measured"
        )
        lab.wait_until(
            lambda: lab.agent_log.read_text().count("limit in place") == _CONTAINERS, "all checks"
        )
    log = lab.agent_log.read_text()
    assert "Too many open files" not in log
    assert sample(lab, "process_max_fds") == 4096


def test_without_descriptors_the_agent_names_no_other_cause(lab: Lab) -> None:
    """The hard limit is too low: containers are refused for that reason, and not accused."""
    lab.start_agent(limiter=("prlimit", "--nofile=64:64"))
    with ExitStack() as stack:
        failures = _start_all(lab, stack)
        lab.wait_until(
            lambda: "arbiter reports" in lab.agent_log.read_text(), "the arbiter's report"
        )
        ready, why = get(lab, "/readyz")
        assert sample(lab, "gpuslice_limit_not_in_place_total") == 0
        assert sample(lab, "gpuslice_unusable_gpus") == 0
    log = lab.agent_log.read_text()
    assert "Too many open files" in log
    for wrong in ("limit not in place", "CDI_MISSING", "files_lost"):
        assert wrong not in log
    assert all("Too many open files" in failure for failure in failures), failures
    assert ready == 200 or "file descriptors" in why
