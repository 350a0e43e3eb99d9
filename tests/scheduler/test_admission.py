"""Bindings of admission policies are switched to Deny, each by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpuslice.contract import names
from gpuslice.kube.errors import KubeError
from scheduler.admission import Admission
from scheduler.metrics import Metrics


class Server:
    """Refuses to change gpuslice-a; every list is empty, so that only `seen` adds bindings."""

    def __init__(self) -> None:
        self.changed: list[str] = []

    async def patch(self, path: str, body: Any, *, timeout_s: float = 0.0) -> Any:
        name = path.rpartition("/")[2]
        if name == "gpuslice-a":
            raise KubeError(403, "Forbidden", f"cannot patch {name}")
        self.changed.append(name)
        return binding(name, *body["spec"]["validationActions"])


def binding(name: str, *actions: str) -> dict[str, Any]:
    labels = {names.LABEL_ADMISSION: names.ADMISSION_AUTO}
    metadata = {"name": name, "resourceVersion": "1", "labels": labels}
    return {"metadata": metadata, "spec": {"validationActions": list(actions)}}


def test_a_binding_that_cannot_be_changed_does_not_keep_others_from_refusing() -> None:
    async def main() -> None:
        server = Server()
        admission = Admission(server, lambda: True, Metrics())  # type: ignore[arg-type]
        for name in ("gpuslice-a", "gpuslice-b", "gpuslice-c"):
            admission.observed(binding(name, "Audit"))
        with pytest.raises(KubeError, match="cannot patch gpuslice-a"):
            await admission._enforce()
        assert server.changed[:2] == ["gpuslice-b", "gpuslice-c"]

    asyncio.run(main())
