"""The host's files, as the doctor reads them: the kubelet's checkpoint, NVIDIA's configuration."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nri_plugin.doctor import host
from nri_plugin.doctor.checks import examine
from nri_plugin.doctor.facts import DevicePlugins, Level, Runtime
from nri_plugin.host import bundle
from nri_plugin.host.driver_root import DriverRoot
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
        (
            json.dumps(CHECKPOINT),
            DevicePlugins(
                {"nvidia.com/gpu": ["GPU-a", "GPU-b"], "x/y": []}, [("u", "c", "nvidia.com/gpu")]
            ),
        ),
        ('{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null}}', DevicePlugins()),
    ],
)
def test_the_kubelets_checkpoint(tmp_path: Path, text: str, expected: DevicePlugins) -> None:
    (tmp_path / "device-plugins").mkdir()
    (tmp_path / "device-plugins" / "kubelet_internal_checkpoint").write_text(text)
    found = host.find_device_plugins(below(tmp_path))
    assert (found.registered, found.allocated) == (expected.registered, list(expected.allocated))
    assert found.problem is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"Data":7}', '{"Data":{"PodDeviceEntries":[{}]}}']
)
def test_a_malformed_checkpoint_is_a_problem(tmp_path: Path, text: str) -> None:
    (tmp_path / "device-plugins").mkdir()
    (tmp_path / "device-plugins" / "kubelet_internal_checkpoint").write_text(text)
    assert host.find_device_plugins(below(tmp_path)).problem is not None


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
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nvidia.toml").write_text('swarm-resource = "X"\n')
    (tmp_path / "lib").symlink_to("/usr")
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/nvidia-cdi-hook").touch()
    given = ("--host-root", str(tmp_path), "--kubelet-dir", "/var/lib/k0s/kubelet")
    settings: Settings = chosen(*given)["settings"]
    assert host.find_device_plugins(settings).problem is None
    assert host.read_nvidia_runtime(tmp_path, Path("/etc/nvidia.toml")).toolkit == OF_X
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
    ("text", "known"),
    [('swarm-resource = "X"\n', OF_X), ("a = \n", None), (None, None)],
)
def test_nvidias_configuration(tmp_path: Path, text: str | None, known: object) -> None:
    file = tmp_path / "config.toml"
    if text is not None:
        file.write_text(text)
    found = host.read_nvidia_runtime(Path("/"), file)
    assert found.toolkit == known
    assert (found.problem is not None) is (text == "a = \n")


def test_the_configuration_of_gpu_operators_toolkit(tmp_path: Path) -> None:
    own = tmp_path / str(OPERATORS_CONFIG).lstrip("/")
    own.parent.mkdir(parents=True)
    own.write_text('swarm-resource = "X"\n')
    found = host.read_nvidia_runtime(tmp_path, Path("/etc/nvidia.toml"))
    assert (found.toolkit, found.file) == (OF_X, str(OPERATORS_CONFIG))
