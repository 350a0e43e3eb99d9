"""Containers without a share stay unchanged, get no GPU, or keep the GPU of NVIDIA's runtime."""

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
from tests.nri_plugin.policy.plan_scene import FAILED, HALF, SIDE, A, decide, entry, grant, pod
from tests.support import GIB

ANOTHER = {names.LABEL_ISOLATION_PROVIDER: "another"}
OF_MAIN = pod([HALF], main=[grant(A)])
NVIDIA = Device("/dev/nvidia0", "c", 195, 0)
NO_GPU = ContainerPlan((("NVIDIA_VISIBLE_DEVICES", "void"),))


def test_a_pod_without_gpus_is_unchanged() -> None:
    for text in (
        '{"gpu":[]}',
        '{"rdma":[{"minor":0,"resources":null}]}',
        '{"rdma":{"of":"tomorrow"}}',
        '{"gpu":null,"rdma":[{"minor":0}]}',
    ):
        assert decide(pod(allocated=text, labels={})) is None
    for labels in ({"app": "web"}, ANOTHER):
        assert decide(pod(labels=labels)) is None


@pytest.mark.parametrize("text", ["{", "", "null"])
@pytest.mark.parametrize("labels", [{}, ANOTHER])
def test_an_unreadable_allocation_of_a_pod_that_requests_no_share_is_no_gpu(
    text: str, labels: dict[str, str]
) -> None:
    of = pod(allocated=text, labels=labels)
    decision = decide(of)
    assert isinstance(decision, ContainerPlan)
    assert decision == replace(NO_GPU, container="main", warning=decision.warning)
    assert decision.warning.startswith(f"annotation {names.ANNOTATION_DEVICE_ALLOCATED}: ")
    assert decision.warning.endswith(": it starts without a GPU")
    assert not annotation_claims.has_shares(of)


def test_which_pods_may_claim_a_gpu() -> None:
    assert not annotation_claims.may_claim({"app": "web"}, {"a": "b"})
    for of in (pod(), pod([HALF], labels={}), pod(granted="", labels={})):
        assert annotation_claims.may_claim(of.labels, of.annotations)
    assert annotation_claims.has_shares(pod(granted="")), "unreadable"


HOST_VOLUMES = (Mount("/host", "/"), Mount("/x", "/run/gpuslice"))
RESTLESS: Mapping[str, tuple[Pod, Container]] = {
    "a GPU that failed": (pod([entry(FAILED.uuid, 9, memory=1)], main=[grant(FAILED)]), SIDE),
    "a GPU without a spec": (OF_MAIN, SIDE),
    "a grant that is too much": (pod([HALF], main=[grant(A, 41 * GIB)]), SIDE),
    "a variable twice": (OF_MAIN, replace(SIDE, env=("NVIDIA_VISIBLE_DEVICES=all",) * 2)),
    "the host's files": (OF_MAIN, replace(SIDE, mounts=HOST_VOLUMES)),
    "every device": (OF_MAIN, replace(SIDE, privileged=True)),
}


@pytest.mark.parametrize(("of", "container"), RESTLESS.values(), ids=RESTLESS)
def test_a_container_without_a_grant_starts_without_a_gpu(of: Pod, container: Container) -> None:
    decision = decide(of, container, specs=Specs())
    assert decision == replace(NO_GPU, container="side")


def test_a_plan_without_a_gpu_warns_with_the_reason() -> None:
    naming = replace(SIDE, env=("NVIDIA_VISIBLE_DEVICES=0",))
    for of, why in (
        (OF_MAIN, "NVIDIA_VISIBLE_DEVICES='0' names GPUs"),
        (pod(), "has no GPU allocation"),
        (pod(allocated='{"rdma":[]}'), "has no GPU allocation"),
    ):
        decision = decide(of, naming)
        assert isinstance(decision, ContainerPlan) and decision.key is None
        assert why in decision.warning
    has = replace(SIDE, devices=(NVIDIA,))
    assert decide(OF_MAIN, has) is None, "a device plugin gave it"


# --- which keep the GPUs that NVIDIA's runtime gives them


WEB = Pod("u1", "team", "web")
ALL = Container("c1", "main", ("PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"))
HERE = Situation(Toolkit(), True, frozenset(), ("/var/lib/kubelet", "/data/kubelet"))


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


def mounting(source: str, **more: str) -> Container:
    return replace(ALL, mounts=(Mount("/x", source, **more),))


KUBELET = "/var/lib/kubelet"
CONTAINERS = {
    "privileged": (replace(ALL, privileged=True), Gpus.UNLIMITED),
    "device": (replace(ALL, devices=(NVIDIA,)), Gpus.UNLIMITED),
    "cdi": (replace(ALL, cdi_names=("k8s.device-plugin.nvidia.com/gpu=GPU-1",)), Gpus.UNLIMITED),
    "another CDI device": (replace(ALL, cdi_names=("acme.com/nic=0",)), Gpus.OVERRIDDEN),
    "pod-resources": (mounting(f"{KUBELET}/pod-resources"), Gpus.UNLIMITED),
    "device-plugins": (mounting(f"{KUBELET}/device-plugins/"), Gpus.UNLIMITED),
    "kubelet": (mounting(KUBELET), Gpus.UNLIMITED),
    "moved": (mounting("/data/kubelet/pod-resources"), Gpus.UNLIMITED),
    "beside": (mounting("/var/lib/kubelet2"), Gpus.OVERRIDDEN),
    "a volume": (mounting(f"{KUBELET}/pods/u1/volumes/kubernetes.io~empty-dir/d"), Gpus.OVERRIDDEN),
    "a moved volume": (mounting("/data/kubelet/pods/u1/volumes/x"), Gpus.OVERRIDDEN),
    "memory": (mounting("tmpfs", type="tmpfs"), Gpus.OVERRIDDEN),
}


@pytest.mark.parametrize(("container", "found"), CONTAINERS.values(), ids=CONTAINERS)
def test_a_manager_or_holder_of_gpus_keeps_them(container: Container, found: Gpus) -> None:
    assert gpus(WEB, container, HERE) is found


def test_pods_of_another_allocator_keep_their_gpus() -> None:
    assert gpus(replace(WEB, runtime_handler="nvidia"), ALL, HERE) is Gpus.UNLIMITED
    for changes in ({"ours": False}, {"assigned": {"u1"}}, {"assigned": {"team/web"}}):
        assert gpus(WEB, ALL, replace(HERE, **changes)) is Gpus.UNLIMITED
    assert gpus(WEB, ALL, replace(HERE, assigned={"u2", "team/db"})) is Gpus.OVERRIDDEN


def test_what_the_toolkit_accepts() -> None:
    refuses = replace(HERE, toolkit=Toolkit(of_unprivileged=False))
    assert gpus(WEB, ALL, refuses) is Gpus.NONE
    assert gpus(WEB, replace(ALL, privileged=True), refuses) is Gpus.UNLIMITED
    request = Mount("/var/run/nvidia-container-devices/all", "/dev/null")
    asking = replace(ALL, env=(), mounts=(request,))
    assert gpus(WEB, asking, HERE) is Gpus.NONE
    mounts = replace(HERE, toolkit=Toolkit(of_unprivileged=False, of_mounts=True))
    assert gpus(WEB, asking, mounts) is Gpus.UNLIMITED
