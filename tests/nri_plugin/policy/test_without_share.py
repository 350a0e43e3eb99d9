"""Containers without a share: left unchanged, or started without a GPU; and which of them keep the
GPUs that NVIDIA's runtime gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpuslice.contract import names
from nri_plugin.policy import annotation_claims
from nri_plugin.policy.bystanders import Gpus, Situation, gpus
from nri_plugin.policy.model import Container, Device, Mount, Pod, Specs
from nri_plugin.policy.nvidia import Toolkit
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


# --- which keep the GPUs that NVIDIA's runtime gives them


WEB = Pod("u1", "team", "web")
ALL = Container("c1", "main", ("PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"))
HERE = Situation(Toolkit(), True, frozenset(), ("/var/lib/kubelet", "/data/kubelet"))
REQUEST = Mount("/var/run/nvidia-container-devices/all", "/dev/null")
OF_WEB = "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/data"


@pytest.mark.parametrize(
    ("env", "found"),
    [
        (["NVIDIA_VISIBLE_DEVICES=all"], Gpus.OVERRIDDEN),
        (["NVIDIA_VISIBLE_DEVICES= all"], Gpus.OVERRIDDEN),
        (["CUDA_VERSION=12.1"], Gpus.OVERRIDDEN),
        (["CUDA_VERSION=12.1", "NVIDIA_VISIBLE_DEVICES="], Gpus.NONE),
        (["CUDA_VERSION=12.1", "NVIDIA_REQUIRE_CUDA=cuda>=12"], Gpus.NONE),
        (["NVIDIA_VISIBLE_DEVICES=void"], Gpus.NONE),
        (["NVIDIA_VISIBLE_DEVICES=,"], Gpus.NONE),
        (["NVIDIA_VISIBLE_DEVICES"], Gpus.NONE),
        ([], Gpus.NONE),
        (["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"], Gpus.NONE),
        (["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all"], Gpus.UNLIMITED),
    ],
)
def test_what_the_variables_request(env: list[str], found: Gpus) -> None:
    assert gpus(WEB, replace(ALL, env=env), HERE) is found


@pytest.mark.parametrize(
    "changes",
    [
        {"privileged": True},
        {"devices": (Device("/dev/nvidia0", "c", 195, 0),)},
        {"cdi_names": ("k8s.device-plugin.nvidia.com/gpu=GPU-1",)},
        {"mounts": (Mount("/pr", "/var/lib/kubelet/pod-resources"),)},
        {"mounts": (Mount("/dp", "/var/lib/kubelet/device-plugins/"),)},
        {"mounts": (Mount("/kubelet", "/var/lib/kubelet"),)},
        {"mounts": (Mount("/pr", "/data/kubelet/pod-resources"),)},
    ],
    ids=["privileged", "device", "cdi", "pod-resources", "device-plugins", "kubelet", "moved"],
)
def test_a_container_that_manages_gpus_or_was_given_one_keeps_them(
    changes: dict[str, object],
) -> None:
    assert gpus(WEB, replace(ALL, **changes), HERE) is Gpus.UNLIMITED  # type: ignore[arg-type]


def test_volumes_of_pods_are_no_sign_of_it() -> None:
    mounts = (
        Mount("/data", OF_WEB),
        Mount("/other", "/var/lib/kubelet2"),
        Mount("/config", "/data/kubelet/pods/u1/volumes/kubernetes.io~configmap/config"),
        Mount("/tmp", "tmpfs", type="tmpfs"),
    )
    container = replace(ALL, mounts=mounts, cdi_names=("acme.com/nic=0",))
    assert gpus(WEB, container, HERE) is Gpus.OVERRIDDEN


def test_pods_of_another_allocator_keep_their_gpus() -> None:
    by_class = replace(WEB, runtime_handler="nvidia")
    assert gpus(by_class, ALL, HERE) is Gpus.UNLIMITED
    assert gpus(WEB, ALL, replace(HERE, ours=False)) is Gpus.UNLIMITED
    for assigned in ("u1", "team/web"):
        assert gpus(WEB, ALL, replace(HERE, assigned={assigned})) is Gpus.UNLIMITED
    assert gpus(WEB, ALL, replace(HERE, assigned={"u2", "team/db"})) is Gpus.OVERRIDDEN


def test_what_the_toolkit_accepts() -> None:
    refuses = replace(HERE, toolkit=Toolkit(of_unprivileged=False))
    assert gpus(WEB, ALL, refuses) is Gpus.NONE
    assert gpus(WEB, replace(ALL, privileged=True), refuses) is Gpus.UNLIMITED
    asking = replace(ALL, env=(), mounts=(REQUEST,))
    assert gpus(WEB, asking, HERE) is Gpus.NONE
    mounts = replace(HERE, toolkit=Toolkit(of_unprivileged=False, of_mounts=True))
    assert gpus(WEB, asking, mounts) is Gpus.UNLIMITED
