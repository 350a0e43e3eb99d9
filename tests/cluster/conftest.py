"""A control plane for the worker's tests, and a namespace for each."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from simgpu.lab.controlplane import ControlPlane


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver, one for each pytest worker; what a test leaves there, others see."""
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as started:
        yield started


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of the test's own; its pods end with it."""
    name = f"test-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.remove_namespace(name)
