"""The reason for which a node is another program's names what its operator can do there."""

from __future__ import annotations

import pytest

from nri_plugin.policy.other_plugins import Sign, conflict

SOCKET = "a device plugin listens on nvidia-gpu.sock"


@pytest.mark.parametrize(
    ("sign", "operator", "do"),
    [
        (Sign(SOCKET), False, "keep it off this node"),
        (
            Sign(SOCKET),
            True,
            "kubectl label node node-1 nvidia.com/gpu.deploy.device-plugin=false"
            " nvidia.com/gpu.deploy.operator-validator=false --overwrite",
        ),
        (Sign(SOCKET, is_gke=True), False, "gke-no-default-nvidia-gpu-device-plugin=true"),
        (
            Sign(SOCKET, service="nvidia-k8s-device-plugin.service"),
            True,
            "set settings.kubelet-device-plugins.nvidia.enabled = false in Bottlerocket's settings",
        ),
        (
            Sign("dra", is_dra=True, service="nvidia-dra-driver-gpu.service"),
            False,
            "set settings.kubelet-dra-drivers.nvidia.enabled = false in Bottlerocket's settings",
        ),
        (Sign(SOCKET, service="nvidia-device-plugin.service"), False, "managementMode: Unmanaged"),
        (
            Sign("dra", is_dra=True, service="dra-driver-nvidia-gpu.service"),
            False,
            "managementMode: Unmanaged",
        ),
        (Sign(SOCKET, service="own.service"), True, "stop it: systemctl disable --now own.service"),
        (Sign("dra", is_dra=True), True, "keep the DRA driver's kubelet plugin off this node"),
    ],
)
def test_the_advice_exists_on_the_platform(sign: Sign, operator: bool, do: str) -> None:
    """Labels of GPU Operator keep off only what GPU Operator runs."""
    text = conflict([sign], "node-1", operator)
    assert text.startswith(f"another program allocates this node's GPUs ({sign.text})")
    assert do in text and text.endswith("or keep gpuslice off it by nodeSelector")
    assert ("kubectl label" in text) == ("kubectl label" in do)


def test_two_signs_of_one_program_have_one_advice() -> None:
    text = conflict([Sign(SOCKET), Sign("status.allocatable has nvidia.com/gpu: 8")], "n", False)
    assert f"({SOCKET}; status.allocatable has nvidia.com/gpu: 8)" in text
    assert text.count("keep it off this node") == 1
    assert conflict([], "n", False) == ""
