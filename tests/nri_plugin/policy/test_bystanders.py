"""Which containers without a share keep the GPUs that NVIDIA's runtime gives them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nri_plugin.policy.bystanders import Gpus, Situation, gpus
from nri_plugin.policy.model import Container, Device, Mount, Pod
from nri_plugin.policy.nvidia import Toolkit

POD = Pod("u1", "team", "web")
ALL = Container("c1", "main", ("PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"))
HERE = Situation(Toolkit(), True, frozenset(), ("/var/lib/kubelet", "/data/kubelet"))
REQUEST = Mount("/var/run/nvidia-container-devices/all", "/dev/null")
OF_POD = "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/data"


def _with(*env: str) -> Container:
    return replace(ALL, env=env)


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
    assert gpus(POD, _with(*env), HERE) is found


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
    assert gpus(POD, replace(ALL, **changes), HERE) is Gpus.UNLIMITED  # type: ignore[arg-type]


def test_volumes_of_pods_are_no_sign_of_it() -> None:
    mounts = (
        Mount("/data", OF_POD),
        Mount("/other", "/var/lib/kubelet2"),
        Mount("/config", "/data/kubelet/pods/u1/volumes/kubernetes.io~configmap/config"),
        Mount("/tmp", "tmpfs", type="tmpfs"),
    )
    container = replace(ALL, mounts=mounts, cdi_names=("acme.com/nic=0",))
    assert gpus(POD, container, HERE) is Gpus.OVERRIDDEN


def test_pods_of_another_allocator_keep_their_gpus() -> None:
    by_class = replace(POD, runtime_handler="nvidia")
    assert gpus(by_class, ALL, HERE) is Gpus.UNLIMITED
    assert gpus(POD, ALL, replace(HERE, ours=False)) is Gpus.UNLIMITED
    for assigned in ("u1", "team/web"):
        assert gpus(POD, ALL, replace(HERE, assigned={assigned})) is Gpus.UNLIMITED
    assert gpus(POD, ALL, replace(HERE, assigned={"u2", "team/db"})) is Gpus.OVERRIDDEN


def test_what_the_toolkit_accepts() -> None:
    refuses = replace(HERE, toolkit=Toolkit(of_unprivileged=False))
    assert gpus(POD, ALL, refuses) is Gpus.NONE
    assert gpus(POD, replace(ALL, privileged=True), refuses) is Gpus.UNLIMITED
    asking = replace(ALL, env=(), mounts=(REQUEST,))
    assert gpus(POD, asking, HERE) is Gpus.NONE
    mounts = replace(HERE, toolkit=Toolkit(of_unprivileged=False, of_mounts=True))
    assert gpus(POD, asking, mounts) is Gpus.UNLIMITED
