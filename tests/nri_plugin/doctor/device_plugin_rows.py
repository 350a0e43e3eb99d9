"""The doctor's findings of other device plugins and DRA drivers, with the agent's own advice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nri_plugin.doctor.facts import DevicePlugins, Level
from nri_plugin.policy.other_plugins import Sign
from tests.nri_plugin.doctor.whole_node import FAIL, GIVES_WHOLE, OK, OURS, WARN

KEEP_OFF = "keep it off this node, or keep gpuslice off it by nodeSelector"
PLUGIN = "a device plugin listens on nvidia-gpu.sock"
DRA = Sign("NVIDIA's DRA driver listens on x.sock", is_dra=True)
ROWS: list[tuple[str, dict[str, Any], Level, str, str]] = [
    (
        "device-plugins",
        {"plugins": DevicePlugins({"nvidia.com/gpu": ["GPU-a"]})},
        FAIL,
        "offers nvidia.com/gpu",
        KEEP_OFF,
    ),
    (
        "device-plugins",
        {"plugins": DevicePlugins({"example.com/x": ["GPU-a::3"]})},
        FAIL,
        "offers example.com/x",
        KEEP_OFF,
    ),
    ("device-plugins", {"plugins": DevicePlugins({"nvidia.com/gpu": []})}, OK, "no other", ""),
    ("device-plugins", {"plugins": DevicePlugins({"intel.com/x": ["1"]})}, OK, "no other", ""),
    (
        "device-plugins",
        {"plugins": DevicePlugins(allocated=[("uid", "main", "nvidia.com/gpu")])},
        FAIL,
        "container main of pod uid got a GPU",
        KEEP_OFF,
    ),
    (
        "device-plugins",
        {"plugins": DevicePlugins(sockets=["device-plugins/nvidia-gpu.sock"])},
        WARN,
        "nvidia-gpu.sock",
        KEEP_OFF,
    ),
    ("device-plugins", {"settings": GIVES_WHOLE, "plugins": OURS}, OK, "agent offers nvidia", ""),
    (
        "device-plugins",
        {
            "settings": GIVES_WHOLE,
            "plugins": replace(
                OURS, sockets=[*OURS.sockets, "device-plugins/nvidia-gpu.sock"], operator=True
            ),
        },
        FAIL,
        "offers nvidia.com/gpu",
        "nvidia.com/gpu.deploy.device-plugin=false",
    ),
    *(
        (
            "device-plugins",
            {"plugins": DevicePlugins({name: ["GPU-a"]}, signs=[sign])},
            FAIL,
            name,
            do,
        )
        for name, sign, do in (
            (
                "nvidia.com/bottlerocket",
                Sign(PLUGIN, service="nvidia-k8s-device-plugin.service"),
                "set settings.kubelet-device-plugins.nvidia.enabled = false",
            ),
            (
                "nvidia.com/aks",
                Sign(PLUGIN, service="nvidia-device-plugin.service"),
                "make the AKS node pool with unmanaged GPUs",
            ),
            ("nvidia.com/gke", Sign(PLUGIN, is_gke=True), "make the GKE node pool with the label"),
        )
    ),
    ("device-plugins", {"plugins": DevicePlugins(problem="torn")}, WARN, "torn", "kubectl"),
    (
        "device-plugins",
        {"plugins": DevicePlugins(sockets=["device-plugins/nvidia-gpu.sock"], problem="torn")},
        *(WARN, "nvidia-gpu.sock; torn", KEEP_OFF),
    ),
    (
        "device-plugins",
        {"plugins": DevicePlugins(problem="torn", signs=[DRA])},
        *(FAIL, "DRA driver listens on x.sock: which GPUs its claims hold", "plugin off this node"),
    ),
]
