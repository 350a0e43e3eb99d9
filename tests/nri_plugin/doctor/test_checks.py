"""The doctor's findings: none on a whole node, and each problem with a remedy.

The inspection itself is tested on a real containerd, in tests/node/test_doctor.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from nri_plugin.command_line import from_arguments
from nri_plugin.doctor.checks import CHECKS, examine
from nri_plugin.doctor.command import as_json, as_text
from nri_plugin.doctor.facts import (
    Agent,
    DevChar,
    DevicePlugins,
    Finding,
    Kernel,
    Level,
    NvidiaRuntime,
    RunDir,
    Runtime,
    Socket,
)
from nri_plugin.host.nvidia_runtime import OPERATORS_CONFIG
from nri_plugin.policy.model import CdiDevice, Edits, Gpu, Mount, Specs
from nri_plugin.policy.nvidia import Toolkit
from nri_plugin.policy.other_plugins import Sign
from tests.nri_plugin.doctor.whole_node import DEVICE, WHOLE, chosen, config

ENCODE = Mount("/usr/lib/libnvidia-encode.so.580", "/usr/lib/libnvidia-encode.so.580")
NVIDIA = {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": "/x/nvidia-runtime"}}
ENVVAR = "accept-nvidia-visible-devices-envvar-when-unprivileged"
OF_OPERATOR = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"
REFUSES = Toolkit(of_unprivileged=False)
MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"
TOLERATE = {"tolerate_missing_plugins_annotation": "free"}
REJECTS = {"enable": True, "reject_oci_hook_adjustment": True}
GIVES_WHOLE = from_arguments(["--library", "/lib.so", "--whole-gpus", "any"], {})
OURS = DevicePlugins(
    {"nvidia.com/gpu": ["GPU-a"]},
    [("uid", "main", "nvidia.com/gpu")],
    ["device-plugins/gpuslice-gpu.sock"],
)


def runtime(version: str = "v2.4.2", name: str = "containerd", **of: Any) -> dict[str, Any]:
    return {"runtime": Runtime(name, version, config(**of))}


def with_spec(device: CdiDevice | None, *problems: str) -> dict[str, Any]:
    return {"specs": Specs({} if device is None else {"GPU-a": device}, problems)}


NVIDIAS = runtime(handlers={"nvidia": NVIDIA}, default="nvidia")
MIG = Gpu("GPU-m", 1, 1 << 30, problem="MIG mode is enabled")
LACKING = DevChar(("/dev/nvidia0", "/dev/nvidiactl"), ("/dev/nvidia0",))
CGROUPFS = {"runc": {"options": {"SystemdCgroup": False}}}


KEEP_OFF = "keep it off this node, or keep gpuslice off it by nodeSelector"
PLUGIN = "a device plugin listens on nvidia-gpu.sock"
DRA = Sign("NVIDIA's DRA driver listens on x.sock", is_dra=True)


@dataclass(frozen=True)
class Row:
    """A finding on a whole node with these changes, and parts of its texts."""

    level: Level
    found: str
    do: str
    changes: Mapping[str, Any]


def passes(found: str, **changes: Any) -> Row:
    return Row(Level.OK, found, "", changes)


def warns(found: str, do: str, **changes: Any) -> Row:
    return Row(Level.WARN, found, do, changes)


def fails(found: str, do: str, **changes: Any) -> Row:
    return Row(Level.FAIL, found, do, changes)


ROWS: Mapping[str, Sequence[Row]] = {
    "root": [
        fails("not run as root", "", root=False),
        warns("NVML may name", "where it is not", kernel=Kernel("6.1", host_pids=False)),
        warns(
            "not measured",
            "workloadIsolation: false in SecurityProfileConfig",
            kernel=Kernel("6.1", host_pids=False),
            platform="talos",
        ),
    ],
    "nri-socket": [
        fails("nri.sock does not", "disable = f", socket=Socket(False, False)),
        fails("no process", "start containerd", socket=Socket(True, False)),
        fails("no access", "--nri-socket", socket=Socket(False, False, "no access")),
    ],
    "runtime": [
        fails("does not serve it: its NRI (0.6.1)", "upgrade", **runtime("v1.7.25")),
        fails("containerd 1.6.40: the agent does not", "upgrade", **runtime("1.6.40")),
        passes("containerd v1.7.26", **runtime("v1.7.26")),
        warns("not tested", "2.2 or later", **runtime("v2.0.3")),
        warns("not tested", "2.2 or later", **runtime("v2.1.9")),
        passes("v2.9.0", **runtime("v2.9.0")),
        fails("crio 1.34.0: the agent does not", "containerd", **runtime("1.34.0", "crio")),
        warns("not known: no answer", "hostPID", runtime=Runtime(problem="no answer")),
    ],
    "containerd-state": [
        fails(
            "containerd's state is in /run/k3s/containerd, the agent reads /run/containerd",
            "--containerd-state /run/k3s/containerd",
            runtime=Runtime("containerd", "v2.4.0", {"state": "/run/k3s/containerd"}),
        ),
        warns("/run/containerd shows", "HostToContainer", state_seen=False),
        passes(
            "/run/containerd",
            runtime=Runtime("containerd", "v2.4.0", {"state": "/var/run/containerd"}),
            links={"/var/run/containerd": "/run/containerd"},
        ),
    ],
    "run-dir": [
        fails(
            "stays in its pod",
            "mountPropagation: Bidirectional",
            run_dir=RunDir(True, 1 << 30, 10**6, propagates=False),
        ),
        fails(
            "user 0, mode 755: must be the agent's user and mode 700",
            "chmod 700",
            run_dir=RunDir(True, 1 << 30, 10**6, open_to="user 0, mode 755"),
        ),
        warns("not on a tmpfs", "/run", run_dir=RunDir(False, 1 << 30, 1 << 20)),
        fails("0 KiB", "free space", run_dir=RunDir(True, 1000, 1 << 20)),
        fails("3 inodes", "free space", run_dir=RunDir(True, 1 << 30, 3)),
        fails("no", "--run-dir", run_dir=RunDir(True, 0, 0, "no")),
    ],
    "dev-char": [
        warns("no link for /dev/nvidia0: with", "at each boot", dev_char=LACKING),
        warns(
            "daemon-reload",
            "--create-all --driver-root=/run/nvidia/driver",
            dev_char=LACKING,
            driver_root="/run/nvidia/driver",
        ),
        passes("cgroupfs", dev_char=LACKING, **runtime(handlers=CGROUPFS)),
        passes("for the driver's 2 device nodes", dev_char=DevChar(LACKING.nodes)),
    ],
    "security-modules": [
        passes("lets containers use", selinux=True),
        warns(
            "container_file_t:s0; whether the policy",
            "the agent's /readyz",
            selinux=True,
            agent=Agent(False, "SELinux does not let"),
        ),
        passes("does not label containers", selinux=True, **runtime(cri={"enable_selinux": False})),
        passes("default profile allows", apparmor=True),
    ],
    "dialects": [
        passes("koordinator, volcano; the", **chosen("--dialects=koordinator,volcano")),
    ],
    "driver": [
        passes(
            "driver 580.65.06, below /run/nvidia/driver",
            driver="580.65.06",
            driver_root="/run/nvidia/driver",
        ),
        fails("NVML: no", "nvidia-smi", gpus_problem="NVML: no"),
        fails("lists no GPU", "with a GPU", gpus=()),
        warns("GPU-m: MIG mode is", "repair or exclude these", failed_gpus=[MIG]),
        fails("GPU-m: MIG mode", "repair or exclude", gpus=(), failed_gpus=[MIG]),
    ],
    "nri": [
        fails("NRI is off in", "disable = f", **runtime(disable=True)),
        fails("NRI is off", "disable = fal", runtime=Runtime("containerd", "v1.7.30", {})),
        passes("NRI is on", runtime=Runtime("containerd", "v2.3.0", {})),
        fails("no plugin connect", "disable_connections =", **runtime(disable_connections=True)),
        warns("not known: gone", "root", runtime=Runtime(problem="gone")),
    ],
    "validator": [
        warns("validator is off", "enable = true", **runtime(validator={})),
        warns("has no validator", "upgrade to containerd 2.2", **runtime("v1.7.30")),
        warns("not known: gone", "root", runtime=Runtime(problem="gone")),
        fails("rejects OCI", "reject_oci_hook_adjustment =", **runtime(validator=REJECTS)),
        passes("is on", **runtime(validator=REJECTS), **with_spec(replace(DEVICE, own=Edits()))),
        warns("annotation free", "forbid", **runtime(validator={"enable": True, **TOLERATE})),
    ],
    "containerd-cdi": [
        passes("not used"),
        passes("that the kubelet names", settings=GIVES_WHOLE),
        passes("applies CDI", settings=GIVES_WHOLE, **runtime("v2.0.3")),
        fails(
            "CDI is off", "enable_cdi = true", settings=GIVES_WHOLE, **runtime("v1.7.30", old=True)
        ),
        passes(
            "that the kubelet names",
            settings=GIVES_WHOLE,
            **runtime("v1.7.30", old=True, cri={"enable_cdi": True}),
        ),
        fails(
            "containerd reads CDI specs in /etc/cdi, /var/run/cdi, the agent in",
            "--cdi-dir",
            **chosen("--whole-gpus", "any", "--cdi-dir", "/x"),
        ),
        fails(
            "CDI is off",
            "[plugins.'io.containerd.cri.v1.runtime']\n  enable_cdi = true",
            settings=GIVES_WHOLE,
            **runtime(cri={"enable_cdi": False}),
        ),
        passes(
            "that the kubelet names",
            **chosen("--whole-gpus", "any", "--cdi-dir", "/x"),
            **runtime(cri={"cdi_spec_dirs": ["/links", "/etc/cdi"]}),
            links={"/links": "/x"},
        ),
    ],
    "library": [
        fails("/l: gone", "--library", library_problem="/l: gone"),
        warns("not in /run/gpuslice/.store yet", "at its start", library_published=False),
    ],
    "cdi": [
        warns("GPU-a has no device of its name", "nvidia-ctk cdi generate", **with_spec(None)),
        fails(
            "unreadable: /etc/cdi/x.yaml: bad",
            "--device-name-strategy=uuid",
            **with_spec(None, "/etc/cdi/x.yaml: bad"),
            **chosen("--nvidia-ctk", "off"),
        ),
        fails("nvidia.yaml: twice", "keep one file", **with_spec(replace(DEVICE, problem="twice"))),
        fails("do not exist: /x/hook", "toolkit again", missing={"GPU-a": ["/x/hook"]}),
        passes("GPU-a in", **with_spec(replace(DEVICE, common=Edits(mounts=(ENCODE,))))),
    ],
    "nvidia-runtime": [
        warns("where its image sets", f"--set {ENVVAR}=false", **NVIDIAS),
        warns(
            "a pod gets GPUs without a limit by its own NVIDIA_VISIBLE_DEVICES",
            f"{OF_OPERATOR}=false; or its cdi.enabled: true",
            **NVIDIAS,
            nvidia=NvidiaRuntime(Toolkit(), str(OPERATORS_CONFIG)),
        ),
        fails(
            "a pod gets GPUs without a limit",
            "remove swarm-resource from /etc/nvidia-container-runtime/config.toml",
            **NVIDIAS,
            nvidia=NvidiaRuntime(Toolkit(other_variables="ANY")),
        ),
        warns(
            "whose RuntimeClass has the handler gpu",
            f"{ENVVAR}=false",
            **runtime(handlers={"gpu": NVIDIA}),
        ),
        passes("runtime ignores", **NVIDIAS, nvidia=NvidiaRuntime(REFUSES)),
        warns(
            "a pod gets GPUs without a limit by a volume mount",
            f"{MOUNTS}=false",
            **NVIDIAS,
            nvidia=NvidiaRuntime(replace(REFUSES, of_mounts=True)),
        ),
        warns(
            "RuntimeClass has the handler unknown",
            "=false",
            runtime=Runtime(problem="x"),
            nvidia=NvidiaRuntime(Toolkit(), problem=None),
        ),
        warns("neither", "hostPID", runtime=Runtime(problem="x")),
    ],
    "kernel": [
        fails("4.4 does not offer", "newer", kernel=Kernel("4.4", {"openat2": "x"})),
    ],
    "agent": [
        warns("does not respond:", "start", agent=Agent(None, problem="refused")),
        fails("not ready: no GPU", "above", agent=Agent(False, "no GPU")),
    ],
    "device-plugins": [
        fails(
            "offers nvidia.com/gpu", KEEP_OFF, plugins=DevicePlugins({"nvidia.com/gpu": ["GPU-a"]})
        ),
        fails(
            "offers example.com/x", KEEP_OFF, plugins=DevicePlugins({"example.com/x": ["GPU-a::3"]})
        ),
        passes("no other", plugins=DevicePlugins({"nvidia.com/gpu": []})),
        passes("no other", plugins=DevicePlugins({"intel.com/x": ["1"]})),
        fails(
            "container main of pod uid got a GPU",
            KEEP_OFF,
            plugins=DevicePlugins(allocated=[("uid", "main", "nvidia.com/gpu")]),
        ),
        warns(
            "nvidia-gpu.sock",
            KEEP_OFF,
            plugins=DevicePlugins(sockets=["device-plugins/nvidia-gpu.sock"]),
        ),
        passes("agent offers nvidia", settings=GIVES_WHOLE, plugins=OURS),
        fails(
            "offers nvidia.com/gpu",
            "nvidia.com/gpu.deploy.device-plugin=false",
            settings=GIVES_WHOLE,
            plugins=replace(
                OURS, sockets=[*OURS.sockets, "device-plugins/nvidia-gpu.sock"], operator=True
            ),
        ),
        fails(
            "nvidia.com/gke",
            "make the GKE node pool with the label",
            plugins=DevicePlugins({"nvidia.com/gke": ["GPU-a"]}, signs=[Sign(PLUGIN, is_gke=True)]),
        ),
        warns("torn", "kubectl", plugins=DevicePlugins(problem="torn")),
        warns(
            "nvidia-gpu.sock; torn",
            KEEP_OFF,
            plugins=DevicePlugins(sockets=["device-plugins/nvidia-gpu.sock"], problem="torn"),
        ),
        fails(
            "DRA driver listens on x.sock: which GPUs its claims hold",
            "plugin off this node",
            plugins=DevicePlugins(problem="torn", signs=[DRA]),
        ),
    ],
}


def test_a_healthy_node_has_no_findings() -> None:
    found = examine(WHOLE)
    assert {finding.level for finding in found} == {Level.OK}
    assert not [finding for finding in found if finding.do]
    assert len(found) == len(CHECKS)


@pytest.mark.parametrize(
    ("check", "row"),
    [
        pytest.param(check, row, id=f"{check}-{row.found}".replace(" ", "_")[:60])
        for check, rows in ROWS.items()
        for row in rows
    ],
)
def test_each_problem_is_reported_with_a_remedy(check: str, row: Row) -> None:
    (finding,) = (each for each in examine(replace(WHOLE, **row.changes)) if each.check == check)
    assert finding.level is row.level
    assert row.found in finding.found and row.do in finding.do
    assert bool(finding.do) is (row.level is not Level.OK)


def test_text_and_json() -> None:
    findings = [
        Finding("a", Level.OK, "well"),
        Finding("b", Level.FAIL, "a\nforged: line\x1b", "in x:\n[table]\n  key = 1"),
    ]
    assert as_text(findings) == (
        "ok    a: well\n"
        "fail  b: a\\nforged: line\\x1b\n"
        "        do: in x:\n"
        "            [table]\n"
        "              key = 1\n"
    )
    said = json.loads(as_json(findings))
    assert said["ok"] is False
    assert said["checks"][0] == {"check": "a", "level": "ok", "found": "well", "do": ""}
    assert json.loads(as_json(findings[:1]))["ok"] is True
