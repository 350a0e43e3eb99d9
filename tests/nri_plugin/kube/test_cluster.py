"""The agent's check of the API server's version."""

from __future__ import annotations

import asyncio
from typing import Any

from gpuslice.kube.errors import NO_ANSWER, KubeError
from nri_plugin.kube.cluster import check_version
from nri_plugin.readiness import Readiness
from tests.virtual_time import loop_factory as loop_factory
from tests.virtual_time import now


async def test_an_api_server_without_the_policies_makes_the_agent_not_ready() -> None:
    class Server:
        version: str | None = "v1.29.4-gke.100"

        async def get(self, path: str) -> Any:
            if path != "/version" or self.version is None:
                raise KubeError(0, NO_ANSWER, "")
            return {"gitVersion": self.version}

    server: Any = Server()
    readiness = Readiness(now)
    readiness.session, readiness.node = None, ()
    checking = asyncio.create_task(check_version(server, readiness))
    supported = {
        "v1.29.4-gke.100": False,
        "v1.30.0": True,
        "v1.18.20": False,
        "v1.100.0": True,
        "devel": True,
    }
    for server.version, is_supported in supported.items():
        await asyncio.sleep(61)
        readiness.beat()
        assert (not readiness.problems) == is_supported, server.version
        assert is_supported or f"{server.version} is not supported" in readiness.problems[0]
    server.version = "v1.29.0"
    await asyncio.sleep(61)
    server.version = None
    await asyncio.sleep(61)
    readiness.beat()
    assert readiness.problems, "an API server that does not answer changes nothing"
    checking.cancel()
