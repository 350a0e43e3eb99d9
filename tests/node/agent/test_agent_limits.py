"""The agent keeps within its pod's limit of open files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.node.cri import CriError
from lab.node.lab import Lab
from tests.support import GIB, until

from ..scene import OWN, get, lab_of, sample

pytestmark = pytest.mark.node

_CONTAINERS = 40


@contextmanager
def _limited_agent(files: str) -> Iterator[tuple[Lab, list[str]]]:
    """Yield a lab with many shares of one GPU, and the errors of those that do not start."""
    failures = []
    shares = {f"c{number}": [(0, GIB, 1)] for number in range(_CONTAINERS)}
    with lab_of([80 * GIB]) as lab:
        lab.start_agent(limiter=("prlimit", f"--nofile={files}"))
        with lab.pod("many", lab.share(shares)) as pod:
            for name in shares:
                try:
                    pod.run(name, OWN)
                except CriError as error:
                    failures.append(str(error))
            yield lab, failures


def test_a_low_soft_limit_of_open_files_is_raised() -> None:
    """containerd 2 and systemd set a low soft limit. The test's is lower, for few containers."""
    with _limited_agent("100:4096") as (lab, failures):
        assert failures == []

        def all_are_served() -> bool:
            checked = lab.agent_log.read_text().count("limit in place")
            granted = sample(lab, "gpuslice_containers_with_grant")
            not_measured = sample(lab, "gpuslice_containers_not_measured")
            return (checked, granted, not_measured) == (_CONTAINERS, _CONTAINERS, 0)

        until(all_are_served, "all shares, measured and checked")
        assert "Too many open files" not in lab.agent_log.read_text()
        assert sample(lab, "process_max_fds") == 4096


def test_without_descriptors_the_agent_names_no_other_cause() -> None:
    """The hard limit is too low: containers are refused, and no other fault is reported.

    The arbiter has the same limit. It reports only if the agent granted enough containers.
    """
    with _limited_agent("64:64") as (lab, failures):
        lab.wait_until(
            lambda: "Too many open files" in lab.agent_log.read_text(), "the shortage's report"
        )
        ready, why = get(lab, "/readyz")
        assert sample(lab, "gpuslice_limit_not_in_place_total") == 0
        assert sample(lab, "gpuslice_unusable_gpus") == 0
        log = lab.agent_log.read_text()
    for wrong in ("limit not in place", "CDI_MISSING", "files_lost"):
        assert wrong not in log
    assert all("Too many open files" in failure for failure in failures), failures
    assert ready == 200 or "file descriptors" in why
