"""The doctor's findings from recorded facts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from nri_plugin.doctor import facts, host, host_kernel
from nri_plugin.doctor.checks import CHECKS, examine
from nri_plugin.doctor.command import as_json, as_text, main
from nri_plugin.doctor.facts import DevChar, DevicePlugins, Finding, Level, Runtime, Socket
from nri_plugin.host.nvidia_runtime import OPERATORS_CONFIG
from nri_plugin.policy.model import CdiDevice, Edits, Gpu, Mount, Specs
from nri_plugin.policy.nvidia import Toolkit
from nri_plugin.policy.other_plugins import Sign
from tests.nri_plugin.doctor.whole_node import DEVICE, WHOLE, chosen, config

Changes = dict[str, Any]


def runtime(version: str = "v2.4.2", name: str = "containerd", **of: Any) -> Changes:
    return {"runtime": Runtime(name, version, config(**of))}


def bare(version: str = "v2.4.0", **top: str) -> Changes:
    """Return the changes for a containerd whose configuration has no tables."""
    return {"runtime": Runtime("containerd", version, top)}


def run_dir(tmpfs: bool = True, free: int = 1 << 30, inodes: int = 10**6, **of: Any) -> Changes:
    return {"run_dir": facts.RunDir(tmpfs, free, inodes, **of)}


def of_spec(device: CdiDevice | None, *problems: str) -> Changes:
    return {"specs": Specs({} if device is None else {"GPU-a": device}, problems)}


def nvidias(toolkit: Toolkit | None = None, *file: str) -> Changes:
    """Return the changes for a node whose default runtime is NVIDIA's."""
    seen = {"nvidia": facts.NvidiaRuntime(toolkit, *file)} if toolkit else {}
    return runtime(handlers={"nvidia": NVIDIA}, default="nvidia") | seen


def plugins(*of: Any, **more: Any) -> Changes:
    return {"plugins": DevicePlugins(*of, **more)}


UNKNOWN: Changes = {"runtime": Runtime(problem="gone")}
OWN_PIDS: Changes = {"kernel": facts.Kernel("6.1", host_pids=False)}
IN_TALOS = OWN_PIDS | {"platform": "talos"}
BELOW: Changes = {"driver_root": "/run/nvidia/driver"}
LACKING = DevChar(("/dev/nvidia0", "/dev/nvidiactl"), ("/dev/nvidia0",))
LACKS: Changes = {"dev_char": LACKING}
SELINUX: Changes = {"selinux": True}
UNWELL: Changes = {"agent": facts.Agent(False, "no GPU")}
MIG: Changes = {"failed_gpus": [Gpu("GPU-m", 1, 1 << 30, problem="MIG mode is enabled")]}
OPEN = run_dir(open_to="user 0, mode 755")
WITHOUT_HOOKS = of_spec(replace(DEVICE, own=Edits()))
ENCODE = Mount("/usr/lib/libnvidia-encode.so.580", "/usr/lib/libnvidia-encode.so.580")
TOLERATES = {"enable": True, "tolerate_missing_plugins_annotation": "free"}
REJECTS = {"enable": True, "reject_oci_hook_adjustment": True}
CGROUPFS = {"runc": {"options": {"SystemdCgroup": False}}}
NVIDIA = {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": "/x/nvidia-runtime"}}
ENVVAR = "accept-nvidia-visible-devices-envvar-when-unprivileged"
OF_OPERATOR = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"
ACCEPTS: Changes = {"nvidia": facts.NvidiaRuntime(Toolkit())}
REFUSES = Toolkit(of_unprivileged=False)
MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"
BY_CLASS = runtime(handlers={"gpu": NVIDIA})
BY_MOUNTS = nvidias(replace(REFUSES, of_mounts=True))
WHOLE_GPUS = chosen("--whole-gpus", "any")
AUTO = chosen("--memory-limits=auto")
WITHOUT: Changes = {"without_driver_limits": "why"}
OLD_WITH_CDI = runtime("v1.7.30", old=True, cri={"enable_cdi": True})
ELSEWHERE = chosen("--whole-gpus", "any", "--cdi-dir", "/x")
BY_LINKS = runtime(cri={"cdi_spec_dirs": ["/links", "/etc/cdi"]})
ANY_OF = {"nvidia.com/gpu": ["GPU-a"]}
ALLOCATED = [("uid", "main", "nvidia.com/gpu")]
OURS, NVIDIAS = "device-plugins/gpuslice-gpu.sock", "device-plugins/nvidia-mig.sock"
AT_GKE = Sign("a device plugin listens on nvidia-gpu.sock", is_gke=True)
OF_GOOGLE = plugins({"nvidia.com/gke": ["GPU-a"]}, signs=[AT_GKE])
DRA = plugins(problem="torn", signs=[Sign("NVIDIA's DRA driver listens on x.sock", is_dra=True)])
KEEP_OFF = "keep it off this node, or keep gpuslice off it by nodeSelector"
CDI_ON = "[plugins.'io.containerd.cri.v1.runtime']\n  enable_cdi = true"


@dataclass(frozen=True)
class Row:
    """The finding that these changes to a whole node cause. found: a part of the doctor's output.
    do: a part of its remedy."""

    level: Level
    found: str
    changes: Changes
    do: str = ""


passes, warns, fails = (partial(Row, level) for level in (Level.OK, Level.WARN, Level.FAIL))
ROWS: Mapping[str, Sequence[Row]] = {
    "root": [
        fails("not run as root", {"root": False}, "run it as root"),
        warns("NVML may name", OWN_PIDS, "where it is not"),
        warns("not measured", IN_TALOS, "workloadIsolation: false in SecurityProfileConfig"),
    ],
    "nri-socket": [
        fails("nri.sock does not", {"socket": Socket(False, False)}, "disable = f"),
        fails("no process", {"socket": Socket(True, False)}, "start containerd"),
        fails("no access", {"socket": Socket(False, False, "no access")}, "--nri-socket"),
    ],
    "runtime": [
        fails("does not serve it: its NRI (0.6.1)", runtime("v1.7.25"), "upgrade"),
        passes("containerd v1.7.26", runtime("v1.7.26")),
        passes("containerd v2.2.0", runtime("v2.2.0")),
        warns("not tested", runtime("v2.1.9"), "2.2 or later"),
        passes("v2.9.0", runtime("v2.9.0")),
        fails("crio 1.34.0: the agent does not", runtime("1.34.0", "crio"), "containerd"),
        warns("not known: gone", UNKNOWN, "hostPID"),
    ],
    "memory-limits": [
        passes("library", {"without_driver_limits": "why"}),
        passes("library; the driver's are not available: why", AUTO | WITHOUT),
        passes("library and driver", AUTO),
        passes("library and driver", chosen("--memory-limits=driver")),
        fails("not available: why", chosen("--memory-limits=driver") | WITHOUT, "auto or library"),
    ],
    "containerd-state": [
        fails(
            "containerd's state is in /run/k3s/containerd, the agent reads /run/containerd",
            bare(state="/run/k3s/containerd"),
            "--containerd-state /run/k3s/containerd",
        ),
        warns("/run/containerd shows", {"state_seen": False}, "HostToContainer"),
        passes(
            "/run/containerd", bare(state="/var/run") | {"links": {"/var/run": "/run/containerd"}}
        ),
    ],
    "run-dir": [
        fails("stays in its pod", run_dir(propagates=False), "mountPropagation: Bidirectional"),
        fails("user 0, mode 755: must be the agent's user and mode 700", OPEN, "chmod 700"),
        warns("not on a tmpfs", run_dir(tmpfs=False), "/run"),
        fails("8191 KiB", run_dir(free=(8 << 20) - 1), "free space"),
        fails("999 inodes", run_dir(inodes=999), "free space"),
        passes("8 MiB", run_dir(free=8 << 20, inodes=1000)),
        fails("no", {"run_dir": facts.RunDir(True, 0, 0, "no")}, "--run-dir"),
    ],
    "dev-char": [
        warns("no link for /dev/nvidia0: with", LACKS, "at each boot"),
        warns("daemon-reload", LACKS | BELOW, "--create-all --driver-root=/run/nvidia/driver"),
        passes("cgroupfs", LACKS | runtime(handlers=CGROUPFS)),
        passes("for the driver's 2 device nodes", {"dev_char": DevChar(LACKING.nodes)}),
    ],
    "security-modules": [
        passes("lets containers use", SELINUX),
        warns("container_file_t:s0; whether the policy", SELINUX | UNWELL, "the agent's /readyz"),
        passes("does not label containers", SELINUX | runtime(cri={"enable_selinux": False})),
        passes("default profile allows", {"apparmor": True}),
        passes("neither SELinux", {}),
    ],
    "dialects": [passes("koordinator, volcano; the", chosen("--dialects=koordinator,volcano"))],
    "driver": [
        passes("driver 580.65.06, below /run/nvidia/driver", BELOW | {"driver": "580.65.06"}),
        fails("NVML: no", {"gpus_problem": "NVML: no"}, "nvidia-smi"),
        fails("lists no GPU", {"gpus": ()}, "with a GPU"),
        warns("GPU-m: MIG mode is", MIG, "repair or exclude these"),
        fails("GPU-m: MIG mode", MIG | {"gpus": ()}, "repair or exclude"),
    ],
    "nri": [
        fails("NRI is off in", runtime(disable=True), "disable = f"),
        fails("NRI is off", bare("v1.7.30"), "disable = fal"),
        passes("NRI is on", bare("v2.0.0")),
        fails("no plugin connect", runtime(disable_connections=True), "disable_connections ="),
        warns("not known: gone", UNKNOWN, "root"),
    ],
    "validator": [
        warns("validator is off", runtime(validator={}), "enable = true"),
        warns("has no validator", runtime("v2.1.9"), "upgrade to containerd 2.2"),
        warns("not known: gone", UNKNOWN, "root"),
        fails("rejects OCI", runtime(validator=REJECTS), "reject_oci_hook_adjustment ="),
        passes("is on", runtime("v2.2.0", validator=REJECTS) | WITHOUT_HOOKS),
        warns("annotation free", runtime(validator=TOLERATES), "forbid"),
    ],
    "containerd-cdi": [
        passes("not used", {}),
        passes("applies CDI", WHOLE_GPUS | runtime("v2.0.0")),
        fails("CDI is off", WHOLE_GPUS | runtime("v1.7.30", old=True), "enable_cdi = true"),
        passes("that the kubelet names", WHOLE_GPUS | OLD_WITH_CDI),
        fails(
            "containerd reads CDI specs in /etc/cdi, /var/run/cdi, the agent in",
            ELSEWHERE,
            "--cdi-dir",
        ),
        fails("CDI is off", WHOLE_GPUS | runtime(cri={"enable_cdi": False}), CDI_ON),
        passes("that the kubelet names", ELSEWHERE | BY_LINKS | {"links": {"/links": "/x"}}),
    ],
    "library": [
        fails("/l: gone", {"library_problem": "/l: gone"}, "--library"),
        warns("not in /run/gpuslice/.store yet", {"library_published": False}, "at its start"),
    ],
    "cdi": [
        warns("GPU-a has no device of its name", of_spec(None), "nvidia-ctk cdi generate"),
        fails(
            "unreadable: /etc/cdi/x.yaml: bad",
            of_spec(None, "/etc/cdi/x.yaml: bad") | chosen("--nvidia-ctk", "off"),
            "--device-name-strategy=uuid",
        ),
        fails("nvidia.yaml: twice", of_spec(replace(DEVICE, problem="twice")), "keep one file"),
        fails("do not exist: /x/hook", {"missing": {"GPU-a": ["/x/hook"]}}, "toolkit again"),
        passes("GPU-a in", of_spec(replace(DEVICE, common=Edits(mounts=(ENCODE,))))),
    ],
    "nvidia-runtime": [
        warns("where its image sets", nvidias(), f"--set {ENVVAR}=false"),
        warns(
            "a pod gets GPUs without a limit by its own NVIDIA_VISIBLE_DEVICES, where its",
            nvidias(Toolkit(), str(OPERATORS_CONFIG)),
            f"{OF_OPERATOR}=false; or its cdi.enabled: true",
        ),
        fails(
            "a pod gets GPUs without a limit",
            nvidias(Toolkit(other_variables="ANY")),
            "remove swarm-resource from /etc/nvidia-container-runtime/config.toml",
        ),
        warns("whose RuntimeClass has the handler gpu", BY_CLASS, f"{ENVVAR}=false"),
        passes("runtime ignores", nvidias(REFUSES)),
        warns("gets GPUs without a limit by a volume mount\n", BY_MOUNTS, f"{MOUNTS}=false"),
        warns("RuntimeClass has the handler unknown", UNKNOWN | ACCEPTS, "=false"),
        warns("neither", UNKNOWN, "hostPID"),
    ],
    "kernel": [
        fails("4.4 does not offer", {"kernel": facts.Kernel("4.4", {"openat2": "x"})}, "newer")
    ],
    "agent": [
        warns("does not respond:", {"agent": facts.Agent(None, problem="refused")}, "start"),
        fails("not ready: no GPU", UNWELL, "above"),
    ],
    "device-plugins": [
        fails("offers nvidia.com/gpu", plugins(ANY_OF), KEEP_OFF),
        fails("x/y; container c of", plugins({"x/y": ["GPU-a::3"]}, [("u", "c", "x/y")]), KEEP_OFF),
        passes("no other", plugins({"nvidia.com/gpu": []})),
        passes("no other", plugins({"intel.com/x": ["1"]}, sockets=["plugins_registry/csi.sock"])),
        fails("container main of pod uid got a GPU", plugins(allocated=ALLOCATED), KEEP_OFF),
        warns("nvidia-mig.sock", plugins(sockets=[NVIDIAS]), KEEP_OFF),
        passes("agent offers nvidia", WHOLE_GPUS | plugins(ANY_OF, ALLOCATED, [OURS])),
        fails(
            "offers nvidia.com/gpu",
            WHOLE_GPUS | plugins(ANY_OF, ALLOCATED, [OURS, NVIDIAS], operator=True),
            "label node node-1 nvidia.com/gpu.deploy.device-plugin=false",
        ),
        fails("nvidia.com/gke", OF_GOOGLE, "make the GKE node pool with the label"),
        warns("torn", plugins(problem="torn"), "kubectl"),
        warns("nvidia-mig.sock; torn", plugins(sockets=[NVIDIAS], problem="torn"), KEEP_OFF),
        fails(
            "DRA driver listens on x.sock: which GPUs its claims hold", DRA, "plugin off this node"
        ),
    ],
}


def test_a_healthy_node_has_no_findings() -> None:
    found = examine(WHOLE)
    assert {(finding.level, finding.do) for finding in found} == {(Level.OK, "")}
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
    assert row.found in as_text([finding]) and row.do in finding.do
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


def test_a_command_without_settings_takes_those_of_the_agent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"07": [replace(WHOLE, root=False), WHOLE]}
    monkeypatch.setattr(host, "collect", lambda settings, *_: found[settings.index].pop())
    monkeypatch.setattr(host_kernel, "agent_arguments", lambda: ["--library=/l", "--index=07"])
    assert (main([], {}), main(["--json"], {})) == (0, 1)
    assert '\n{"ok": false' in capsys.readouterr().out
