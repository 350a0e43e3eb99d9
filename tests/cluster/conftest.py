"""A control plane for each worker's tests; a namespace and a fleet for each test."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator

import pytest

from lab.cluster.controlplane import ControlPlane
from tests.cluster.server import Server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last part of each program's log to the report of a failed test."""
    report = yield
    if report.failed:
        planes = {each for each in item.funcargs.values() if isinstance(each, ControlPlane)}
        for log in sorted(log for plane in planes for log in plane.directory.glob("*.log")):
            text = log.read_text(errors="replace")[-4000:]
            report.sections.append((f"the end of {log.name}", text))
    return report


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start etcd and kube-apiserver without policies. Objects that a test leaves stay."""
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as started:
        started.install_kinds()
        yield started


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    name = f"test-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.remove_namespace(name)


@pytest.fixture(scope="module")
def server(installed: ControlPlane) -> Iterator[Server]:
    with Server(installed) as api:
        yield api
