"""The host's files, as the doctor reads them: the kubelet's checkpoint, NVIDIA's configuration,
the kernel's device files and mounts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nri_plugin.doctor import host, host_kernel
from nri_plugin.doctor.checks import examine
from nri_plugin.doctor.facts import DevChar, DevicePlugins, Level, Runtime
from nri_plugin.host import bundle
from nri_plugin.host.driver_root import WITHOUT_MOUNT, DriverRoot
from nri_plugin.host.nvidia_runtime import OPERATORS_CONFIG
from nri_plugin.policy.model import CdiDevice, Edits, Hook, HookStage, Specs
from nri_plugin.policy.nvidia import Toolkit
from nri_plugin.settings import Settings
from tests.nri_plugin.doctor.whole_node import GPU, WHOLE, chosen, config
from tests.support import ROOT

OF_X = Toolkit(other_variables="X")
CHECKPOINT = {
    "Data": {
        "PodDeviceEntries": [
            {"PodUID": "u", "ContainerName": "c", "ResourceName": "nvidia.com/gpu", "AllocResp": ""}
        ],
        "RegisteredDevices": {"nvidia.com/gpu": ["GPU-a", "GPU-b"], "x/y": None},
    },
    "Checksum": 1,
}


def below(directory: Path) -> Settings:
    """Settings with a kubelet's directories there, and no CDI spec."""
    plugins = directory / "device-plugins"
    return replace(
        WHOLE.settings, kubelet_dir=directory, device_plugin_dir=plugins, cdi_dirs=[directory]
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps(CHECKPOINT), {"nvidia.com/gpu": ["GPU-a", "GPU-b"], "x/y": []}),
        ('{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null}}', {}),
        *((each, None) for each in ("", "[]", "{}", '{"Data":7}')),
        ('{"Data":{"PodDeviceEntries":[{}]}}', None),
    ],
)
def test_the_kubelets_checkpoint(
    tmp_path: Path, text: str, expected: dict[str, list[str]] | None
) -> None:
    (tmp_path / "device-plugins").mkdir()
    (tmp_path / "device-plugins" / "kubelet_internal_checkpoint").write_text(text)
    found = host.find_device_plugins(below(tmp_path))
    assert (found.problem is None) is (expected is not None)
    assert found.registered == (expected or {})
    assert [*found.allocated] == ([("u", "c", "nvidia.com/gpu")] if expected else [])


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a PID namespace")
def test_a_pid_namespace_of_its_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a pod without hostPID, and of every pod of Talos 1.14."""
    program = "from nri_plugin.doctor import host; print(host._kernel().host_pids)"
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert done.stdout == "False\n", done.stderr
    ours = os.stat("/proc/self/ns/pid").st_ino
    monkeypatch.setattr(host, "_HOSTS_PID_NAMESPACE", ours)
    assert host._kernel().host_pids


def test_a_state_directory_that_the_pod_does_not_see_is_found(tmp_path: Path) -> None:
    settings = replace(below(tmp_path), host_root=tmp_path, containerd_state=tmp_path / "state")
    bundles = bundle.directory(settings.containerd_state, "any").parent

    def is_seen() -> bool:
        return host.collect(settings, None, None, tmp_path / "nvidia.toml").state_seen

    assert not is_seen()
    bundles.mkdir(parents=True)
    assert is_seen()


def test_nvidias_dra_driver_is_found(tmp_path: Path) -> None:
    claim = tmp_path / "cdi/k8s.gpu.nvidia.com-claim_0f0f.yaml"
    claim.parent.mkdir()
    claim.touch()
    assert host.find_device_plugins(below(tmp_path)).signs == []
    found = host.find_device_plugins(replace(below(tmp_path), cdi_dirs=[claim.parent]))
    assert [(str(claim) in sign.text, sign.is_dra) for sign in found.signs] == [(True, True)]


def test_a_device_plugin_is_found_beside_a_kubelet_of_another_root(short: Path) -> None:
    """The directory of device plugins is the same for every --root-dir of the kubelet."""
    (short / "var/lib/kubelet/device-plugins").mkdir(parents=True)
    (short / "run/nvidia/validations").mkdir(parents=True)
    given = ("--host-root", str(short), "--kubelet-dir", "/var/lib/k0s/kubelet")
    settings: Settings = chosen(*given)["settings"]
    with socket.socket(socket.AF_UNIX) as plugin:
        plugin.bind(str(settings.device_plugin_dir / "nvidia-gpu.sock"))
        plugin.listen()
        found = host.find_device_plugins(settings)
    assert (found.sockets, found.problem) == (["device-plugins/nvidia-gpu.sock"], None)
    assert ["a device plugin listens on" in sign.text for sign in found.signs] == [True]
    assert found.operator and not host.find_device_plugins(below(short)).operator


def test_no_kubelet_at_all(tmp_path: Path) -> None:
    found = host.find_device_plugins(below(tmp_path))
    assert found.problem == f"{tmp_path}/device-plugins does not exist"
    (tmp_path / "device-plugins").mkdir()
    found = host.find_device_plugins(below(tmp_path))
    assert found == DevicePlugins(allocated=[], sockets=[], signs=[])


def test_the_hosts_files_are_looked_for_under_its_root(tmp_path: Path) -> None:
    """A pod sees the host's root elsewhere. Links resolve relative to that root."""
    (tmp_path / "var/lib/kubelet/device-plugins").mkdir(parents=True)
    (tmp_path / "lib").symlink_to("/usr")
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/nvidia-cdi-hook").touch()
    given = ("--host-root", str(tmp_path), "--kubelet-dir", "/var/lib/k0s/kubelet")
    settings: Settings = chosen(*given)["settings"]
    assert host.find_device_plugins(settings).problem is None
    names = ("/lib/nvidia-cdi-hook", "/lib/gone", "/usr/gone")
    hooks = tuple(Hook(HookStage.CREATE_CONTAINER, name) for name in names)
    specs = Specs({"GPU-a": CdiDevice("GPU-a", "/x", Edits(hooks=hooks))})
    drivers = DriverRoot(Path("/"), tmp_path, tmp_path)
    assert host.missing(GPU, specs, drivers) == ["/lib/gone", "/usr/gone"]
    assert host.missing(GPU, Specs(), drivers) == ()


def test_containerds_directories_lie_where_the_hosts_links_lead(tmp_path: Path) -> None:
    """The agent's own paths in a pod have their links resolved: /var/run/cdi is /run/cdi to it."""
    (tmp_path / "run/cdi").mkdir(parents=True)
    (tmp_path / "run/k3s/containerd").mkdir(parents=True)
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    given = ("--host-root", str(tmp_path), "--whole-gpus", "any")
    settings: Settings = chosen(*given, "--containerd-state", "/run/k3s/containerd")["settings"]
    runtime = Runtime("containerd", "v2.4.2", {**config(), "state": "/var/run/k3s/containerd"})
    facts = replace(
        WHOLE,
        settings=settings,
        runtime=runtime,
        specs=Specs({"GPU-a": CdiDevice("GPU-a", f"{tmp_path}/run/cdi/nvidia.yaml", Edits())}),
        links=host.links(settings, runtime),
    )
    found = {each.check: each for each in examine(facts)}
    assert {found[name].level for name in ("containerd-cdi", "containerd-state")} == {Level.OK}
    assert host.links(settings, Runtime()) == {"/": "/"}


@pytest.mark.parametrize(
    ("place", "text", "known"),
    [
        ("etc/nvidia.toml", 'swarm-resource = "X"\n', OF_X),
        (str(OPERATORS_CONFIG)[1:], 'swarm-resource = "X"\n', OF_X),
        ("etc/nvidia.toml", "a = \n", None),
        ("elsewhere", "", None),
    ],
)
def test_nvidias_configuration(
    tmp_path: Path, place: str, text: str, known: Toolkit | None
) -> None:
    """The one that is given, or GPU Operator's."""
    file = tmp_path / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    found = host.read_nvidia_runtime(tmp_path, Path("/etc/nvidia.toml"))
    assert found.toolkit == known
    assert known is None or found.file == f"/{place}"
    assert (found.problem is not None) is (text == "a = \n")


# --- the kernel


def nodes(directory: Path) -> None:
    """A link to a node stands for a node, which only root could make."""
    (directory / "nvidia-caps").mkdir(parents=True)
    (directory / "nvidia0").symlink_to("/dev/null")
    (directory / "nvidia-caps/nvidia-cap1").symlink_to("/dev/zero")
    (directory / "nvidia.log").touch()


@pytest.mark.parametrize("below", ["", "run/nvidia/driver"])
def test_nodes_without_a_link(tmp_path: Path, below: str) -> None:
    """The driver's nodes are the host's, or those of a driver container."""
    nodes(tmp_path / below / "dev")
    (tmp_path / "dev/char").mkdir(parents=True)
    root = DriverRoot(Path("/") / below, tmp_path / below, tmp_path)
    both = ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1")
    assert host_kernel.dev_char(tmp_path, root) == DevChar(both, both)
    (tmp_path / "dev/char/1:3").symlink_to("../nvidia0")
    assert host_kernel.dev_char(tmp_path, root).lacking == both[1:]
    assert host_kernel.dev_char(tmp_path / "none", WITHOUT_MOUNT).nodes == ()


def test_whether_apparmor_is_enabled(tmp_path: Path) -> None:
    assert not host_kernel.apparmor(tmp_path)
    directory = tmp_path / "sys/module/apparmor/parameters"
    directory.mkdir(parents=True)
    for text in ("N\n", "Y\n"):
        (directory / "enabled").write_text(text)
        assert host_kernel.apparmor(tmp_path) is (text == "Y\n")


MOUNTS = """\
100 90 0:50 / / rw,relatime - overlay overlay rw
101 100 0:22 /gpuslice /run/gpuslice rw - tmpfs tmpfs rw
102 100 0:22 /containerd /run/containerd rw master:5 - tmpfs tmpfs rw
103 100 0:22 /shared /run/shared rw shared:6 master:5 - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "reaches"),
    [
        ("/run/gpuslice", False),
        ("/run/containerd", False),
        ("/run/shared", True),
        ("/run/shared/below", True),
        ("/run/sharedness", False),
        ("/elsewhere", False),
    ],
)
def test_mounts_that_reach_the_host(path: str, reaches: bool) -> None:
    assert host_kernel.propagates(MOUNTS, Path(path)) is reaches


def test_the_flags_of_the_agent_in_this_pod(tmp_path: Path) -> None:
    """The doctor in `kubectl exec` has none; another pod's agent is not asked."""

    def process(name: str, namespace: int, *command: str) -> None:
        (tmp_path / name / "ns").mkdir(parents=True)
        (tmp_path / name / "ns/mnt").symlink_to(f"mnt:[{namespace}]")
        text = "".join(f"{word}\0" for word in ("/usr/bin/python", *command))
        (tmp_path / name / "cmdline").write_text(text)

    process("self", 2, "-m", "nri_plugin", "doctor")
    process("10", 1, "-m", "nri_plugin", "--library", "/elsewhere")
    process("11", 2, "-m", "nri_plugin", "distribute", "--library", "/l")
    process("12", 2, "-m", "nri_plugin")
    process("13", 2)
    assert host_kernel.agent_arguments(tmp_path) == ()
    process("14", 2, "-m", "nri_plugin", "--library", "/l", "--strict")
    assert list(host_kernel.agent_arguments(tmp_path)) == ["--library", "/l", "--strict"]
