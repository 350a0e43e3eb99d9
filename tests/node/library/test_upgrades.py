"""Fifty containers call the driver in loops while the library is upgraded five times, and
downgraded once: no process ends, the limit is always in force, and a release goes with its last
container."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Container, Process
from lab.node.cri_v1.cri_pb2 import CONTAINER_RUNNING
from lab.node.lab import Lab

from ..conftest import _C, _STRICT, GIB
from .test_store import mounted, releases, sha256, upgrade

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

CONTAINERS: Final = 50
REPLACED: Final = 8
"""Containers that end, and start again, after each change of the library."""
LIMIT_BYTES: Final = GIB * 3 // 4
"""Two contexts and what is allocated fit; fifty of these fit on the GPU."""
RELEASES: Final = (1, 2, 3, 4, 5, 3)
"""The versions in the order of their publication; the last is a downgrade."""
PROGRAM: Final = "/opt/limit-loop"
REPORTS: Final = "/reports"
MORE_STARTS: Final = 2


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("limit-loop") / "limit-loop"
    source = [str(_C / "limit_loop.c"), "-o", str(built), "-ldl"]
    subprocess.run(["gcc", *_STRICT, *source], check=True)
    return built


@dataclass
class Tenant:
    """reports: the host's directory of its report. release: the SHA-256 of the library that it
    started with. A program that ends ends its container."""

    container: Container
    reports: Path
    release: str
    end: ExitStack

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.reports / "report").read_text())
        return found


class Tenants:
    def __init__(self, lab: Lab, program: Path, reports: Path) -> None:
        self._lab = lab
        self._program = program
        self._reports = reports
        self._started = 0
        self.running: list[Tenant] = []
        self.passes = self.starts = 0

    def start(self, count: int) -> None:
        """Start a program with the current release."""
        release = sha256(self._lab.library.read_bytes())
        for _ in range(count):
            self._started += 1
            name = f"tenant-{self._started}"
            reports = self._reports / name
            reports.mkdir()
            process = Process(
                PYTHON_IMAGE,
                (PROGRAM, str(LIMIT_BYTES), f"{REPORTS}/report"),
                mounts={REPORTS: reports},
                read_mounts={PROGRAM: self._program},
            )
            with ExitStack() as stack:
                share = self._lab.share({"main": [(0, LIMIT_BYTES, 1)]})
                container = stack.enter_context(self._lab.pod(name, share)).run("main", process)
                self._lab.wait_until((reports / "report").exists, "its first report")
                assert mounted(container) == release
                self.running.append(Tenant(container, reports, release, stack.pop_all()))

    def stop(self, count: int) -> None:
        """The oldest; their last report must be right."""
        for tenant in self.running[:count]:
            report = tenant.report()
            assert (report["bad"], report["wrong"]) == (0, ""), report
            assert tenant.container.status().state == CONTAINER_RUNNING
            self.passes += report["passes"]
            self.starts += report["starts"]
            tenant.end.close()
        del self.running[:count]

    def are_right(self) -> None:
        """Each has run for a while since the last change, and started processes."""
        before = [tenant.report()["starts"] for tenant in self.running]

        def went_on() -> bool:
            reports = [tenant.report() for tenant in self.running]
            assert not any(each["bad"] for each in reports), reports
            pairs = zip(reports, before, strict=True)
            return all(each["starts"] >= earlier + MORE_STARTS for each, earlier in pairs)

        self._lab.wait_until(went_on, "each container to go on")


@pytest.fixture
def tenants(lab: Lab, program: Path, tmp_path: Path) -> Iterator[Tenants]:
    made, library = Tenants(lab, program, tmp_path), lab.library
    yield made
    with ThreadPoolExecutor(4) as at_once:
        list(at_once.map(lambda each: each.end.close(), made.running))
    lab.library = library
    lab.stop_agent()
    lab.start_agent()


def test_fifty_containers_through_five_upgrades_and_a_downgrade(lab: Lab, tenants: Tenants) -> None:
    own = lab.library.read_bytes()
    tenants.start(CONTAINERS)
    for version in RELEASES:
        data = own + f"release {version}".encode()
        upgrade(lab, data)
        tenants.stop(REPLACED)
        tenants.start(REPLACED)
        tenants.are_right()
        assert {each.release for each in tenants.running} | {sha256(data)} <= releases(lab)
    tenants.stop(len(tenants.running) - REPLACED)
    left = {each.release for each in tenants.running} | {sha256(data)}
    lab.wait_until(lambda: releases(lab) == left, "releases without a container to be removed")
    tenants.stop(REPLACED)
    lab.wait_until(lambda: releases(lab) == {sha256(data)}, "all but the agent's to be removed")
    print(f"{tenants.passes} passes, {tenants.starts} starts")  # noqa: T201
