"""A pod of KAI, from kube-scheduler's calls to its Binding and its event."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuslice.contract import names
from gpuslice.contract.dialects import KAI, KOORDINATOR
from gpuslice.kube.client import Kube
from scheduler.binder import Binder
from scheduler.decisions.choice import BOUND
from scheduler.decisions.verbs import Verbs
from scheduler.events import POD_NOTICE, Events
from scheduler.kubernetes.arguments import BindingArguments
from scheduler.metrics import Metrics
from tests.scheduler import calls, objects
from tests.scheduler.lease_guards import ManualLeaseGuard
from tests.scheduler.pod_server import PodServer

GiB = 2**30
ENABLED = frozenset({KOORDINATOR.name, KAI.name})


class Api:
    def __init__(self) -> None:
        self.written: list[Any] = []

    async def post(self, path: str, body: Any, *, timeout_s: float = 0, **query: object) -> Any:
        self.written.append(body)
        return body


@pytest.mark.parametrize("mps", ["true", "false"])
async def test_the_binding_and_the_event(mps: str) -> None:
    annotations = {"gpu-fraction": "0.125", "gpu-fraction-num-devices": "2", "mps": mps}
    raw = calls.pod("u-1", objects.container("main"), objects.container("other"))
    raw["metadata"]["annotations"] = annotations
    raw["spec"]["schedulerName"] = KAI.scheduler_name
    state, server, api = calls.state(nodes=1, gpus=2), PodServer(raw), Api()
    state.dialects = ENABLED
    verbs = Verbs(state)
    async with server.serving() as access, Kube(access) as kube:
        binder = Binder(state, kube, ManualLeaseGuard(), verbs)
        verbs.filter(calls.arguments(raw, calls.names(1)))
        assert await binder.bind(BindingArguments("default", "pod-u-1", "u-1", "n0")) == BOUND
    (binding,) = server.bindings
    written = binding["metadata"]["annotations"]
    assert written["received-resource-type"] == "Fraction"
    grants = json.loads(written[names.ANNOTATION_GRANTS])
    assert [gpu["memory"] for gpu in grants["containers"]["main"]] == [3 * GiB, 3 * GiB]
    assert {*grants["containers"]} == {"main"}
    assert grants["env"] == {"main": {"GPU_PORTION": "0.12", "RUNAI_NUM_OF_GPUS": "0.12"}}
    events = Events(api.post, Metrics(), lambda: 0.0, "me")
    await events.notices(binder.take_notices())
    await events.notices(binder.take_notices())
    assert [(each["reason"], each["type"], each["regarding"]["uid"]) for each in api.written] == (
        [(POD_NOTICE, "Normal", "u-1")] if mps == "true" else []
    )
