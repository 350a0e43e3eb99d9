"""What keeps a node from changing its front end, and from serving claims."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from aiohttp import web

from nri_plugin.kube.claims_driver import ClaimsDriver
from nri_plugin.kube.inventory_publisher import InventoryPublisher
from nri_plugin.policy import kube_objects
from nri_plugin.policy.front_ends import FrontEnd, FrontEnds
from nri_plugin.policy.gpu_modes import GpuModes, Offer
from tests.kube.api_server import client_of, refuse
from tests.nri_plugin.objects import parts, settings
from tests.support import until_async

_CLAIMS = {"resourceClaims": [{"name": "gpu"}]}


def _bound(phase: str, spec: Any) -> kube_objects.Bound:
    raw = {"uid": phase, "namespace": "ns", "name": phase.lower()}
    return kube_objects.bound({"metadata": raw, "spec": spec, "status": {"phase": phase}})


def test_a_node_stays_while_a_pod_waits_for_its_claims() -> None:
    """Without the plugin the kubelet could neither start nor end the pod. Running pods of other
    drivers do not matter, because the claims of ours are prepared."""
    agent = parts(settings(node_name="n"), claims=FrontEnds(FrontEnd.CLAIMS))
    driver = ClaimsDriver(cast(Any, None), agent, cast(Any, None), lambda: True)
    for phase, spec in (("Running", _CLAIMS), ("Pending", {}), ("Succeeded", _CLAIMS)):
        agent.bound_pods.put(_bound(phase, spec), listing=False)
    assert driver._holders() == []
    agent.bound_pods.put(_bound("Pending", _CLAIMS), listing=False)
    assert driver._holders() == ["pod ns/pending"]
    agent.claims.now = FrontEnd.ANNOTATIONS
    assert driver._holders() == []


@pytest.mark.parametrize(
    ("refusal", "text"),
    [
        ((403, "Forbidden", "must have rights"), "Forbidden: must have rights"),
        ((404, "NotFound", "no such resource"), "NotFound: no such resource"),
    ],
)
async def test_the_readiness_says_why_claims_cannot_be_served(
    refusal: tuple[int, str, str], text: str
) -> None:
    """The node's label asks for claims of a cluster that lacks them, or that has no rights yet."""

    async def answer(_: web.Request) -> web.Response:
        return refuse(*refusal)

    with TemporaryDirectory(prefix="gs-", dir="/tmp") as name:  # sockets need a short path
        front_ends = FrontEnds()
        front_ends.wanted = FrontEnd.CLAIMS
        chosen = replace(settings(), kubelet_dir=Path(name), node_name="node-1")
        agent = parts(chosen, claims=front_ends)
        async with client_of(answer) as kube:
            publisher = InventoryPublisher(kube, agent, GpuModes(Offer()))
            driver = ClaimsDriver(kube, agent, publisher, lambda: True)
            running = asyncio.create_task(driver.run())
            await until_async(lambda: any(text in each for each in agent.readiness.notes))
            running.cancel()
            await asyncio.wait([running])
    moves, problem = agent.readiness.front_end
    assert moves.startswith("the node moves from annotations to claims")
    assert problem.startswith(f"resourceslices: {text}; claims need Kubernetes 1.36")
