"""Containers without a share: left unchanged, or started without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpuslice.contract import names
from nri_plugin.policy import annotation_claims
from nri_plugin.policy.model import Container, Device, Mount, Pod, Specs
from nri_plugin.policy.plan import ContainerPlan
from tests.nri_plugin.policy.plan_scene import (
    FAILED,
    HALF,
    MAIN,
    MEMORY,
    SIDE,
    A,
    adjusted,
    decide,
    entry,
    grant,
    pod,
)
from tests.support import GIB


@pytest.mark.parametrize(
    "of",
    [
        pod(labels={}),
        pod(labels={"app": "web"}),
        pod([], labels={}),
        pod(allocated='{"rdma":[{"minor":0,"resources":null}]}', labels={}),
        pod(allocated='{"rdma":{"of":"tomorrow"}}', labels={}),
        pod(allocated='{"gpu":null,"rdma":[{"minor":0}]}', labels={}),
        pod(labels={names.LABEL_ISOLATION_PROVIDER: "another"}),
    ],
)
def test_untouched(of: Pod) -> None:
    assert decide(of) is None


@pytest.mark.parametrize("text", ["{", "", "null"])
@pytest.mark.parametrize("labels", [{}, {names.LABEL_ISOLATION_PROVIDER: "another"}])
def test_an_unreadable_allocation_of_a_pod_that_requests_no_share_is_no_gpu(
    text: str, labels: dict[str, str]
) -> None:
    of = pod(allocated=text, labels=labels)
    decision = adjusted(of)
    assert dict(decision.env) == {names.ENV_VISIBLE_DEVICES: names.VISIBLE_DEVICES_NONE}
    assert not decision.devices and not decision.mounts
    assert decision.warning.startswith(f"annotation {names.ANNOTATION_DEVICE_ALLOCATED}: ")
    assert decision.warning.endswith(": it starts without a GPU")
    assert not annotation_claims.has_shares(of)


def test_which_pods_may_claim_a_gpu() -> None:
    def may_claim(of: Pod) -> bool:
        return annotation_claims.may_claim(of.labels, of.annotations)

    assert not may_claim(pod(labels={"app": "web"}))
    assert may_claim(pod())
    assert may_claim(pod([HALF], labels={}))
    assert may_claim(pod(granted_text="", labels={}))


RESTLESS: Mapping[str, tuple[Pod, Container]] = {
    "a GPU that failed": (pod([entry({MEMORY: 1}, "GPU-failed", 9)], {"main": [FAILED]}), SIDE),
    "a GPU without a spec": (pod([HALF], {"main": [grant(A, 1)]}), SIDE),
    "a grant that is too much": (pod([HALF], {"main": [grant(A, 41 * GIB)]}), SIDE),
    "a variable twice": (
        pod([HALF], {"main": [grant(A, 1)]}),
        replace(SIDE, env=("NVIDIA_VISIBLE_DEVICES=all",) * 2),
    ),
    "the host's files": (
        pod([HALF], {"main": [grant(A, 1)]}),
        replace(SIDE, mounts=(Mount("/host", "/"), Mount("/x", "/run/gpuslice"))),
    ),
    "every device": (pod([HALF], {"main": [grant(A, 1)]}), replace(SIDE, privileged=True)),
}


@pytest.mark.parametrize("case", RESTLESS)
def test_a_container_without_a_grant_starts_without_a_gpu(case: str) -> None:
    of, container = RESTLESS[case]
    decision = decide(of, container, specs=Specs())
    assert decision == ContainerPlan((("NVIDIA_VISIBLE_DEVICES", "void"),), container="side")


def test_a_plan_without_a_gpu_warns_with_the_reason() -> None:
    naming = replace(SIDE, env=("NVIDIA_VISIBLE_DEVICES=0",))
    for of, container, why in (
        (pod([HALF], {"main": [grant(A, 1)]}), naming, "NVIDIA_VISIBLE_DEVICES='0' names GPUs"),
        (pod(), MAIN, "has no GPU allocation"),
        (pod(allocated='{"rdma":[]}'), MAIN, "has no GPU allocation"),
    ):
        decision = decide(of, container)
        assert isinstance(decision, ContainerPlan) and decision.key is None
        assert why in decision.warning

    has = replace(SIDE, devices=(Device("/dev/nvidia0", "c", 195, 0),))
    assert decide(pod([HALF], {"main": [grant(A, 1)]}), has) is None, "a device plugin gave it"
