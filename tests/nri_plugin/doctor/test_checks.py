"""The doctor's findings: none on a whole node, and each problem with a remedy.

The inspection itself is tested on a real containerd, in tests/node/test_doctor.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nri_plugin.doctor.checks import CHECKS, examine
from nri_plugin.doctor.command import as_json, as_text
from nri_plugin.doctor.facts import (
    Agent,
    DevChar,
    Finding,
    Kernel,
    Level,
    NvidiaRuntime,
    RunDir,
    Runtime,
    Socket,
)
from nri_plugin.host.nvidia_runtime import OPERATORS_CONFIG
from nri_plugin.policy.model import Edits
from nri_plugin.policy.nvidia import Toolkit
from tests.nri_plugin.doctor import device_plugin_rows
from tests.nri_plugin.doctor.whole_node import (
    CGROUPFS,
    DEVICE,
    ENCODE,
    ENVVAR,
    FAIL,
    GIVES_WHOLE,
    LACKING,
    MIG,
    MOUNTS,
    NVIDIA,
    NVIDIAS,
    OK,
    REFUSES,
    REJECTS,
    TOLERATE,
    WARN,
    WHOLE,
    chosen,
    runtime,
    with_spec,
)

ROWS: list[tuple[str, dict[str, Any], Level, str, str]] = [
    ("root", {"root": False}, FAIL, "not run as root", ""),
    ("root", {"kernel": Kernel("6.1", host_pids=False)}, WARN, "NVML may name", "where it is not"),
    (
        "root",
        {"kernel": Kernel("6.1", host_pids=False), "platform": "talos"},
        *(WARN, "not measured", "workloadIsolation: false in SecurityProfileConfig"),
    ),
    ("nri-socket", {"socket": Socket(False, False)}, FAIL, "nri.sock does not", "disable = f"),
    ("nri-socket", {"socket": Socket(True, False)}, FAIL, "no process", "start containerd"),
    (
        "nri-socket",
        {"socket": Socket(False, False, "no access")},
        FAIL,
        "no access",
        "--nri-socket",
    ),
    ("runtime", runtime("v1.7.25"), FAIL, "does not serve it: its NRI (0.6.1)", "upgrade"),
    ("runtime", runtime("1.6.40"), FAIL, "containerd 1.6.40: the agent does not", "upgrade"),
    ("runtime", runtime("v1.7.26"), OK, "containerd v1.7.26", ""),
    ("runtime", runtime("v2.0.3"), WARN, "not tested", "2.2 or later"),
    ("runtime", runtime("v2.1.9"), WARN, "not tested", "2.2 or later"),
    ("runtime", runtime("v2.9.0"), OK, "v2.9.0", ""),
    ("runtime", runtime("1.34.0", "crio"), FAIL, "crio 1.34.0: the agent does not", "containerd"),
    (
        "containerd-state",
        {"runtime": Runtime("containerd", "v2.4.0", {"state": "/run/k3s/containerd"})},
        FAIL,
        "containerd's state is in /run/k3s/containerd, the agent reads /run/containerd",
        "--containerd-state /run/k3s/containerd",
    ),
    ("containerd-state", {"state_seen": False}, WARN, "/run/containerd shows", "HostToContainer"),
    (
        "run-dir",
        {"run_dir": RunDir(True, 1 << 30, 10**6, propagates=False)},
        FAIL,
        "stays in its pod",
        "mountPropagation: Bidirectional",
    ),
    ("dev-char", {"dev_char": LACKING}, WARN, "no link for /dev/nvidia0: with", "at each boot"),
    (
        "dev-char",
        {"dev_char": LACKING, "driver_root": "/run/nvidia/driver"},
        *(WARN, "daemon-reload", "--create-all --driver-root=/run/nvidia/driver"),
    ),
    ("dev-char", {"dev_char": LACKING, **runtime(handlers=CGROUPFS)}, OK, "cgroupfs", ""),
    ("dev-char", {"dev_char": DevChar(LACKING.nodes)}, OK, "for the driver's 2 device nodes", ""),
    ("security-modules", {"selinux": True}, OK, "lets containers use", ""),
    (
        "security-modules",
        {"selinux": True, "agent": Agent(False, "SELinux does not let")},
        *(WARN, "container_file_t:s0; whether the policy", "the agent's /readyz"),
    ),
    (
        "security-modules",
        {"selinux": True, **runtime(cri={"enable_selinux": False})},
        *(OK, "does not label containers", ""),
    ),
    ("security-modules", {"apparmor": True}, OK, "default profile allows", ""),
    ("dialects", chosen("--dialects=koordinator,volcano"), OK, "koordinator, volcano; the", ""),
    (
        "driver",
        {"driver": "580.65.06", "driver_root": "/run/nvidia/driver"},
        *(OK, "driver 580.65.06, below /run/nvidia/driver", ""),
    ),
    (
        "run-dir",
        {"run_dir": RunDir(True, 1 << 30, 10**6, open_to="user 0, mode 755")},
        FAIL,
        "user 0, mode 755: must be the agent's user and mode 700",
        "chmod 700",
    ),
    ("runtime", {"runtime": Runtime(problem="no answer")}, WARN, "not known: no answer", "hostPID"),
    ("nri", runtime(disable=True), FAIL, "NRI is off in", "disable = f"),
    ("nri", {"runtime": Runtime("containerd", "v1.7.30", {})}, FAIL, "NRI is off", "disable = fal"),
    ("nri", {"runtime": Runtime("containerd", "v2.3.0", {})}, OK, "NRI is on", ""),
    ("nri", runtime(disable_connections=True), FAIL, "no plugin connect", "disable_connections ="),
    ("nri", {"runtime": Runtime(problem="gone")}, WARN, "not known: gone", "root"),
    ("validator", runtime(validator={}), WARN, "validator is off", "enable = true"),
    ("validator", runtime("v1.7.30"), WARN, "has no validator", "upgrade to containerd 2.2"),
    ("validator", {"runtime": Runtime(problem="gone")}, WARN, "not known: gone", "root"),
    ("validator", runtime(validator=REJECTS), FAIL, "rejects OCI", "reject_oci_hook_adjustment ="),
    (
        "validator",
        {**runtime(validator=REJECTS), **with_spec(replace(DEVICE, own=Edits()))},
        OK,
        "is on",
        "",
    ),
    (
        "validator",
        runtime(validator={"enable": True, **TOLERATE}),
        WARN,
        "annotation free",
        "forbid",
    ),
    ("containerd-cdi", {}, OK, "not used", ""),
    ("containerd-cdi", {"settings": GIVES_WHOLE}, OK, "that the kubelet names", ""),
    ("containerd-cdi", {"settings": GIVES_WHOLE, **runtime("v2.0.3")}, OK, "applies CDI", ""),
    (
        "containerd-cdi",
        {"settings": GIVES_WHOLE, **runtime("v1.7.30", old=True)},
        FAIL,
        "CDI is off",
        "enable_cdi = true",
    ),
    (
        "containerd-cdi",
        {"settings": GIVES_WHOLE, **runtime("v1.7.30", old=True, cri={"enable_cdi": True})},
        OK,
        "that the kubelet names",
        "",
    ),
    (
        "containerd-cdi",
        chosen("--whole-gpus", "any", "--cdi-dir", "/x"),
        FAIL,
        "containerd reads CDI specs in /etc/cdi, /var/run/cdi, the agent in",
        "--cdi-dir",
    ),
    (
        "containerd-cdi",
        {"settings": GIVES_WHOLE, **runtime(cri={"enable_cdi": False})},
        *(FAIL, "CDI is off", "[plugins.'io.containerd.cri.v1.runtime']\n  enable_cdi = true"),
    ),
    (
        "containerd-cdi",
        {
            **chosen("--whole-gpus", "any", "--cdi-dir", "/x"),
            **runtime(cri={"cdi_spec_dirs": ["/links", "/etc/cdi"]}),
            "links": {"/links": "/x"},
        },
        *(OK, "that the kubelet names", ""),
    ),
    (
        "containerd-state",
        {
            "runtime": Runtime("containerd", "v2.4.0", {"state": "/var/run/containerd"}),
            "links": {"/var/run/containerd": "/run/containerd"},
        },
        *(OK, "/run/containerd", ""),
    ),
    ("library", {"library_problem": "/l: gone"}, FAIL, "/l: gone", "--library"),
    (
        "library",
        {"library_published": False},
        WARN,
        "not in /run/gpuslice/.store yet",
        "at its start",
    ),
    ("driver", {"gpus_problem": "NVML: no"}, FAIL, "NVML: no", "nvidia-smi"),
    ("driver", {"gpus": ()}, FAIL, "lists no GPU", "with a GPU"),
    ("driver", {"failed_gpus": [MIG]}, WARN, "GPU-m: MIG mode is", "repair or exclude these"),
    ("driver", {"gpus": (), "failed_gpus": [MIG]}, FAIL, "GPU-m: MIG mode", "repair or exclude"),
    ("cdi", with_spec(None), WARN, "GPU-a has no device of its name", "nvidia-ctk cdi generate"),
    (
        "cdi",
        {**with_spec(None, "/etc/cdi/x.yaml: bad"), **chosen("--nvidia-ctk", "off")},
        FAIL,
        "unreadable: /etc/cdi/x.yaml: bad",
        "--device-name-strategy=uuid",
    ),
    (
        "cdi",
        with_spec(replace(DEVICE, problem="twice")),
        FAIL,
        "nvidia.yaml: twice",
        "keep one file",
    ),
    ("cdi", {"missing": {"GPU-a": ["/x/hook"]}}, FAIL, "do not exist: /x/hook", "toolkit again"),
    ("cdi", with_spec(replace(DEVICE, common=Edits(mounts=(ENCODE,)))), OK, "GPU-a in", ""),
    ("nvidia-runtime", NVIDIAS, WARN, "where its image sets", f"--set {ENVVAR}=false"),
    (
        "nvidia-runtime",
        {**NVIDIAS, "nvidia": NvidiaRuntime(Toolkit(), str(OPERATORS_CONFIG))},
        WARN,
        "a pod gets GPUs without a limit by its own NVIDIA_VISIBLE_DEVICES",
        "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED=false; or its cdi.enabled: true",
    ),
    (
        "nvidia-runtime",
        {**NVIDIAS, "nvidia": NvidiaRuntime(Toolkit(other_variables="ANY"))},
        FAIL,
        "a pod gets GPUs without a limit",
        "remove swarm-resource from /etc/nvidia-container-runtime/config.toml",
    ),
    (
        "nvidia-runtime",
        runtime(handlers={"gpu": NVIDIA}),
        WARN,
        "whose RuntimeClass has the handler gpu",
        f"{ENVVAR}=false",
    ),
    ("nvidia-runtime", {**NVIDIAS, "nvidia": NvidiaRuntime(REFUSES)}, OK, "runtime ignores", ""),
    (
        "nvidia-runtime",
        {**NVIDIAS, "nvidia": NvidiaRuntime(replace(REFUSES, of_mounts=True))},
        WARN,
        "a pod gets GPUs without a limit by a volume mount",
        f"{MOUNTS}=false",
    ),
    (
        "nvidia-runtime",
        {"runtime": Runtime(problem="x"), "nvidia": NvidiaRuntime(Toolkit(), problem=None)},
        WARN,
        "RuntimeClass has the handler unknown",
        "=false",
    ),
    ("nvidia-runtime", {"runtime": Runtime(problem="x")}, WARN, "neither", "hostPID"),
    *device_plugin_rows.ROWS,
    ("run-dir", {"run_dir": RunDir(False, 1 << 30, 1 << 20)}, WARN, "not on a tmpfs", "/run"),
    ("run-dir", {"run_dir": RunDir(True, 1000, 1 << 20)}, FAIL, "0 KiB", "free space"),
    ("run-dir", {"run_dir": RunDir(True, 1 << 30, 3)}, FAIL, "3 inodes", "free space"),
    ("run-dir", {"run_dir": RunDir(True, 0, 0, "no")}, FAIL, "no", "--run-dir"),
    ("kernel", {"kernel": Kernel("4.4", {"openat2": "x"})}, FAIL, "4.4 does not offer", "newer"),
    ("agent", {"agent": Agent(None, problem="refused")}, WARN, "does not respond:", "start"),
    ("agent", {"agent": Agent(False, "no GPU")}, FAIL, "not ready: no GPU", "above"),
]


def test_a_healthy_node_has_no_findings() -> None:
    found = examine(WHOLE)
    assert {finding.level for finding in found} == {Level.OK}
    assert not [finding for finding in found if finding.do]
    assert len(found) == len(CHECKS)


@pytest.mark.parametrize(
    ("check", "changes", "level", "found", "do"),
    ROWS,
    ids=[f"{row[0]}-{row[3]}".replace(" ", "_")[:60] for row in ROWS],
)
def test_each_problem_is_reported_with_a_remedy(
    check: str, changes: dict[str, Any], level: Level, found: str, do: str
) -> None:
    said = [each for each in examine(replace(WHOLE, **changes)) if each.check == check]
    (finding,) = said
    assert (finding.level, found in finding.found, do in finding.do) == (level, True, True), finding
    assert bool(finding.do) is (level is not Level.OK)


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
