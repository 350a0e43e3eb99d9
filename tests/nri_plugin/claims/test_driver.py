"""What keeps a node from changing its front end."""

from __future__ import annotations

from typing import Any, cast

from nri_plugin.kube.claims_driver import ClaimsDriver
from nri_plugin.policy import kube_objects
from nri_plugin.policy.front_ends import FrontEnd, FrontEnds
from tests.nri_plugin.objects import parts, settings

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
