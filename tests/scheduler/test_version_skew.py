"""The comparison of kube-scheduler's version with the API server's."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.kube.errors import NO_ANSWER, KubeError
from scheduler.version_skew import VersionSkew, skew


@pytest.mark.parametrize(
    ("kube_scheduler", "api_server", "supported"),
    [
        ("v1.36.3", "v1.36.0-gke.1183000", True),
        ("v1.35.1", "v1.36.0+k3s1", True),
        ("v1.34.9", "v1.36.0", False),
        ("v1.36.0", "v1.35.9", False),
        ("v1.9.0", "v1.10.0", True),
        ("", "v1.36.0", True),
        ("latest", "v1.36.0", True),
        ("v1.36.3", "", True),
    ],
)
def test_one_minor_version_behind_is_supported(
    kube_scheduler: str, api_server: str, supported: bool
) -> None:
    problem = skew(kube_scheduler, api_server)
    assert (problem == "") == supported
    assert supported or problem.startswith(f"kube-scheduler: invalid version {kube_scheduler}: ")
    assert supported or api_server in problem


async def test_a_skew_is_logged_once_until_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    class Server:
        version: str | None = "v1.36.3"

        async def get(self, path: str) -> Any:
            assert path == "/version"
            if self.version is None:
                raise KubeError(0, NO_ANSWER, "")
            return {"gitVersion": self.version}

    server: Any = Server()
    versions = VersionSkew(server, "v1.35.0")
    for version, count in (("v1.36.3", 0), ("v1.37.0", 1), (None, 1), ("v1.37.0", 1)):
        server.version = version
        await versions.check()
        assert (versions.problem != "", len(caplog.records)) == (bool(count), count)
    server.version = "v1.36.3"
    await versions.check()
    assert versions.problem == ""
