"""The host's files, as the doctor reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from nri_plugin.doctor import host, host_kernel
from nri_plugin.doctor.facts import DevChar, DevicePlugins, Runtime
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.host import bundle, cdi_reader
from nri_plugin.host.driver_root import WITHOUT_MOUNT, DriverRoot
from nri_plugin.host.nvidia_runtime import OPERATORS_CONFIG
from nri_plugin.policy.model import CdiDevice, Edits, Hook, HookStage, Specs
from nri_plugin.policy.nvidia import Toolkit
from nri_plugin.settings import Settings
from tests.nri_plugin.doctor.whole_node import GPU, WHOLE, chosen, config
from tests.nri_plugin.host_files import listening, put
from tests.support import ROOT

ENTRY = {"PodUID": "u", "ContainerName": "c", "ResourceName": "nvidia.com/gpu", "AllocResp": ""}
REGISTERED = {"nvidia.com/gpu": ["GPU-a", "GPU-b"], "x/y": None}
RECORD = {"Data": {"PodDeviceEntries": [ENTRY], "RegisteredDevices": REGISTERED}, "Checksum": 1}


def below(directory: Path) -> Settings:
    """Return settings whose directories of the kubelet and of CDI specs are in `directory`."""
    plugins = directory / "device-plugins"
    return replace(
        WHOLE.settings, kubelet_dir=directory, device_plugin_dir=plugins, cdi_dirs=[directory]
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, {}),
        (json.dumps(RECORD), {"nvidia.com/gpu": ["GPU-a", "GPU-b"], "x/y": []}),
        ('{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null}}', {}),
        *((each, None) for each in ("", "[]", "{}", '{"Data":7}')),
        ('{"Data":{"PodDeviceEntries":[{}]}}', None),
    ],
)
def test_the_kubelets_checkpoint(
    tmp_path: Path, text: str | None, expected: Mapping[str, list[str]] | None
) -> None:
    found = host.find_device_plugins(below(tmp_path))
    assert found.problem == f"{tmp_path}/device-plugins does not exist"
    (tmp_path / "device-plugins").mkdir()
    if text is not None:
        put(tmp_path / "device-plugins/kubelet_internal_checkpoint", text)
    found = host.find_device_plugins(below(tmp_path))
    assert (found.sockets, found.signs, found.operator) == ([], [], False)
    assert (found.problem is None) is (expected is not None)
    assert found.registered == (expected or {})
    assert [*found.allocated] == ([("u", "c", "nvidia.com/gpu")] if expected else [])


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a PID namespace")
def test_a_pid_namespace_of_its_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod without hostPID has its own PID namespace, and so has every pod of Talos 1.14."""
    program = "from nri_plugin.doctor import host; print(host._kernel().host_pids)"
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert done.stdout == "False\n", done.stderr
    hosts = SimpleNamespace(st_ino=0xEFFFFFFC)
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", {"/proc/self/ns/pid": hosts}.__getitem__)
        assert host._kernel().host_pids


def test_a_state_directory_that_the_pod_does_not_see_is_found(tmp_path: Path) -> None:
    settings = replace(below(tmp_path), host_root=tmp_path, containerd_state=tmp_path / "state")
    for is_seen in (False, True):
        found = host.collect(settings, None, None, tmp_path / "nvidia.toml")
        assert (found.state_seen, found.root) == (is_seen, os.geteuid() == 0)
        bundle.directory(settings.containerd_state, "any").parent.mkdir(parents=True, exist_ok=True)


def test_other_programs_are_found_beside_a_kubelet_of_another_root(short: Path) -> None:
    """The directory of device plugins is the same for every --root-dir of the kubelet."""
    for directory in ("var/lib/kubelet/device-plugins", "run/nvidia/validations"):
        (short / directory).mkdir(parents=True)
    given = ("--host-root", str(short), "--kubelet-dir", "/var/lib/k0s/kubelet")
    settings: Settings = chosen(*given)["settings"]
    found = host.find_device_plugins(settings)
    assert found == DevicePlugins(allocated=[], sockets=[], signs=[], operator=True)
    claim = put(short / "etc/cdi/k8s.gpu.nvidia.com-claim_0f0f.yaml")
    with listening(settings.device_plugin_dir / "nvidia-gpu.sock"):
        found = host.find_device_plugins(settings)
    assert (found.sockets, found.problem) == (["device-plugins/nvidia-gpu.sock"], None)
    plugin, dra = found.signs
    assert "a device plugin listens on" in plugin.text and not plugin.is_dra
    assert str(claim) in dra.text and dra.is_dra


def test_the_programs_of_hooks_are_looked_for_under_the_hosts_root(tmp_path: Path) -> None:
    """A pod mounts the host's root at another path. Links resolve relative to that root."""
    (tmp_path / "lib").symlink_to("/usr")
    put(tmp_path / "usr/nvidia-cdi-hook")
    (tmp_path / "self").symlink_to("/self")
    names = ("/lib/nvidia-cdi-hook", "/lib/gone", "/self/hook", "/usr/gone")
    hooks = tuple(Hook(HookStage.CREATE_CONTAINER, name) for name in names)
    specs = Specs({"GPU-a": CdiDevice("GPU-a", "/x", Edits(hooks=hooks))})
    drivers = DriverRoot(Path("/"), tmp_path, tmp_path)
    assert host.missing(GPU, specs, drivers) == [*names[1:]]
    assert host.missing(GPU, Specs(), drivers) == ()


def test_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path("/")
    tmpfs = [host._run_dir(Path(place), root).tmpfs for place in ("/dev/shm/absent", "/proc")]
    assert tmpfs == [True, False]
    for mode, open_to in ((0o700, ""), (0o710, f"user {os.geteuid()}, mode 710")):
        tmp_path.chmod(mode)
        assert host._run_dir(tmp_path, root).open_to == open_to
    monkeypatch.setattr(host_kernel, "propagates", lambda mounts, _: mounts != "")
    assert all(host._run_dir(tmp_path, each).propagates for each in (root, tmp_path))


def test_the_missing_programs_of_each_gpu_are_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = Inventory({})
    inventory.seen = [GPU]
    monkeypatch.setattr(host, "_inventory", lambda _: inventory)
    monkeypatch.setattr(cdi_reader, "load", lambda *_: WHOLE.specs)
    settings = replace(below(tmp_path), host_root=tmp_path)
    found = host.collect(settings, None, None, tmp_path / "nvidia.toml")
    assert found.missing == {"GPU-a": ["/usr/bin/nvidia-cdi-hook"]}


def test_containerds_directories_lie_where_the_hosts_links_lead(tmp_path: Path) -> None:
    """The agent's own paths are already resolved in a pod: it uses /run/cdi for /var/run/cdi."""
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    settings: Settings = chosen("--host-root", str(tmp_path))["settings"]
    state = "/var/run/k3s/containerd"
    found = host.links(settings, Runtime("containerd", "v2.4.2", {**config(), "state": state}))
    cdi = {"/etc/cdi": "/etc/cdi", "/var/run/cdi": "/run/cdi"}
    assert found == {**cdi, state: "/run/k3s/containerd"}
    assert host.links(settings, Runtime()) == {"/": "/"}


@pytest.mark.parametrize("place", ["etc/nvidia.toml", str(OPERATORS_CONFIG)[1:], "elsewhere"])
@pytest.mark.parametrize("text", ['swarm-resource = "X"\n', "a = \n"])
def test_nvidias_configuration(tmp_path: Path, place: str, text: str) -> None:
    """The doctor reads GPU Operator's file if it exists, else the given file."""
    put(tmp_path / place, text)
    found = host.read_nvidia_runtime(tmp_path, Path("/etc/nvidia.toml"))
    is_there, is_valid = place != "elsewhere", "swarm" in text
    assert found.file == f"/{place if is_there else 'etc/nvidia.toml'}"
    known = Toolkit(other_variables="X")
    assert found.toolkit == (known if is_there and is_valid else None)
    assert (found.problem is not None) is (is_there and not is_valid)


@pytest.mark.parametrize("below", ["", "run/nvidia/driver"])
def test_nodes_without_a_link(tmp_path: Path, below: str) -> None:
    """Links stand for device nodes, which only root could make."""
    nodes = tmp_path / below / "dev"
    put(nodes / "nvidia.log")
    (nodes / "nvidia-caps").mkdir()
    (nodes / "nvidia0").symlink_to("/dev/null")
    (nodes / "nvidia-caps/nvidia-cap1").symlink_to("/dev/zero")
    (tmp_path / "dev/char").mkdir(parents=True)
    root = DriverRoot(Path("/") / below, tmp_path / below, tmp_path)
    both = ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1")
    assert host_kernel.dev_char(tmp_path, root) == DevChar(both, both)
    (tmp_path / "dev/char/1:3").symlink_to("../nvidia0")
    assert host_kernel.dev_char(tmp_path, root).lacking == both[1:]
    assert host_kernel.dev_char(tmp_path / "none", WITHOUT_MOUNT).nodes == ()


def test_whether_apparmor_is_enabled(tmp_path: Path) -> None:
    assert not host_kernel.apparmor(tmp_path)
    for text in ("N\n", "Y\n"):
        put(tmp_path / "sys/module/apparmor/parameters/enabled", text)
        assert host_kernel.apparmor(tmp_path) is (text == "Y\n")


MOUNTS = """\
100 90 0:50 / / rw,relatime - overlay overlay rw
101 100 0:22 /gpuslice /run/gpuslice rw - tmpfs tmpfs rw
102 100 0:22 /containerd /run/containerd rw master:5 - tmpfs tmpfs rw
103 100 0:22 /shared /run/shared rw shared:6 master:5 - tmpfs tmpfs rw
"""


def test_mounts_that_reach_the_host() -> None:
    reaching, own = ("shared", "shared/below"), ("gpuslice", "containerd", "sharedness", "/else")
    paths = [Path("/run", name) for name in (*reaching, *own)]
    found = [host_kernel.propagates(MOUNTS, path) for path in paths]
    assert found == [True] * len(reaching) + [False] * len(own)


def test_the_flags_of_the_agent_in_this_pod(tmp_path: Path) -> None:
    """`kubectl exec` gives the doctor no flags. The doctor uses those of the agent in its pod."""

    def process(name: str, namespace: int, *command: str) -> None:
        text = "".join(f"{word}\0" for word in ("/usr/bin/python", *command))
        put(tmp_path / name / "cmdline", text)
        (tmp_path / name / "ns").mkdir()
        (tmp_path / name / "ns/mnt").symlink_to(f"mnt:[{namespace}]")

    process("self", 2, "-m", "nri_plugin", "doctor")
    process("10", 1, "-m", "nri_plugin", "--library", "/elsewhere")
    process("11", 2, "-m", "nri_plugin", "distribute", "--library", "/l")
    process("12", 2, "-m", "nri_plugin")
    process("13", 2, "-m", "http.server", "--directory", "/d")
    assert host_kernel.agent_arguments(tmp_path) == ()
    process("14", 2, "-m", "nri_plugin", "--library", "/l", "--strict")
    assert list(host_kernel.agent_arguments(tmp_path)) == ["--library", "/l", "--strict"]
