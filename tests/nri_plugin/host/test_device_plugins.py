"""How the agent recognizes other programs that allocate GPUs, and NVIDIA's runtime."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nri_plugin.host import device_plugins, nvidia_runtime
from nri_plugin.host.device_plugins import Assignments, RecordError
from nri_plugin.policy.nvidia import Toolkit
from nri_plugin.policy.other_plugins import Sign
from tests.nri_plugin.host_files import bound, put
from tests.nri_plugin.service_scene import UUID, sandbox


def write(directory: Path, assigned: Mapping[str, Sequence[str]], resource: str) -> None:
    """Write the record as the kubelet does, by rename. assigned: device IDs by pod UID."""
    entries = [
        {
            **{"PodUID": uid, "ContainerName": "main", "ResourceName": resource},
            "DeviceIDs": {"-1": list(ids)},
        }
        for uid, ids in assigned.items()
    ]
    new = put(directory / ".new", json.dumps({"Data": {"PodDeviceEntries": entries}}))
    new.rename(directory / device_plugins.RECORD)


@pytest.mark.parametrize(
    ("resource", "identity"),
    [
        ("nvidia.com/gpu", UUID),
        ("nvidia.com/gpu", f"{UUID}-3"),  # a replica of HAMi's or Volcano's plugin
        ("nvidia.com/gpu", "nvidia2"),  # Google's name of a GPU
        ("nvidia.com/gpu", "nvidia2/vgpu0"),
    ],
)
def test_the_pods_of_a_gpu_by_plugins_ids(tmp_path: Path, resource: str, identity: str) -> None:
    write(tmp_path, {"uid-1": [identity]}, resource)
    assigned = Assignments(tmp_path)
    assert assigned.pods(UUID, 2) == {"uid-1"}
    assert assigned.pods("GPU-bbbbbbbb-0000-0000-0000-000000000000", 20) == set()


def test_a_record_that_changed_is_read_again(tmp_path: Path) -> None:
    assigned = Assignments(tmp_path)
    assert assigned.pods(UUID, 0) == set(), "the kubelet has written none"
    for uids in ({"uid-1"}, {"uid-1", "uid-2"}):
        write(tmp_path, {uid: [UUID] for uid in uids}, "nvidia.com/gpu")
        assert assigned.pods(UUID, 0) == uids
    record = put(tmp_path / device_plugins.RECORD, "{")
    for _ in range(2):
        with pytest.raises(RecordError):
            assigned.pods(UUID, 0)
    with pytest.raises(RecordError):
        Assignments(record).pods(UUID, 0)  # a directory that is a file
    record.unlink()
    assert assigned.pods(UUID, 0) == set()


@pytest.mark.parametrize(
    ("name", "is_gke"), [("nvidiaGPU-1700000000.sock", True), ("nvidia-gpu.sock", False)]
)
@pytest.mark.parametrize("service", ["", "nvidia-device-plugin.service"])
def test_a_plugin_that_listens_is_a_sign(
    tmp_path: Path, name: str, is_gke: bool, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sign names the systemd unit of the listening process."""
    monkeypatch.setattr(device_plugins, "unit", {os.getpid(): service}.__getitem__)
    with bound(tmp_path / name) as theirs:
        assert device_plugins.plugin_sign(tmp_path) is None, "no process listens"
        theirs.listen()
        sign = device_plugins.plugin_sign(tmp_path)
    text = f"a device plugin listens on {tmp_path / name}"
    text += f", the host's {service}" if service else ""
    assert sign == Sign(text, service=service, is_gke=is_gke)


@pytest.mark.parametrize(
    ("place", "is_sign"),
    [
        ("plugins/gpu.nvidia.com/dra.sock", True),
        # With rolling updates the DRA driver's sockets have the UID of the driver's pod in their
        # names.
        ("plugins/gpu.nvidia.com/dra-0f0f.sock", True),
        ("plugins_registry/gpu.nvidia.com-0f0f-reg.sock", True),
        ("plugins_registry/compute-domain.nvidia.com-reg.sock", False),
        ("plugins/compute-domain.nvidia.com/dra.sock", False),
    ],
)
def test_a_dra_driver_that_listens_is_a_sign(short: Path, place: str, is_sign: bool) -> None:
    """NVIDIA's driver of compute domains allocates channels between nodes, and no GPU."""
    with bound(short / place) as theirs:
        assert device_plugins.dra_sign(short, []) is None, "no process listens"
        theirs.listen()
        sign = device_plugins.dra_sign(short, [])
    expected = Sign(f"NVIDIA's DRA driver listens on {short / place}", is_dra=True)
    assert sign == (expected if is_sign else None)


def test_a_claim_that_is_prepared_is_a_sign(tmp_path: Path) -> None:
    """The claim's pod has the GPU, also while the driver does not run."""
    put(tmp_path / "nvidia.yaml")
    directories = [tmp_path / "missing", tmp_path]
    assert device_plugins.dra_sign(tmp_path, directories) is None
    claim = put(tmp_path / "k8s.gpu.nvidia.com-claim_0f0f.yaml")
    sign = device_plugins.dra_sign(tmp_path, directories)
    assert sign is not None and sign.is_dra and str(claim) in sign.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0::/system.slice/nvidia-k8s-device-plugin.service\n", "nvidia-k8s-device-plugin.service"),
        ("0::/../../../system.slice/device-plugin.service\n", "device-plugin.service"),
        ("2:cpu:/\n1:name=systemd:/a/x.service\n0::/a/x.service\n", "x.service"),
        ("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-0f0f.scope\n", ""),
        ("0::/kubepods/besteffort/pod1/0f0f\n", ""),
        ("0::/\n", ""),
    ],
)
def test_the_unit_of_a_process(tmp_path: Path, text: str, expected: str) -> None:
    put(tmp_path / "7/cgroup", text)
    assert device_plugins.unit(7, tmp_path) == expected
    assert device_plugins.unit(8, tmp_path) == "", "it is in another PID namespace"


NVIDIA = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
ACCEPT = "accept-nvidia-visible-devices-envvar-when-unprivileged"
MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"
REFUSES = Toolkit(of_unprivileged=False)


@pytest.mark.parametrize(
    ("program", "theirs"),
    [
        ("/usr/bin/nvidia-container-runtime.cdi", True),
        ("nvidia-container-runtime", True),
        ("/usr/bin/runc", False),
    ],
)
def test_the_program_of_a_sandbox(tmp_path: Path, program: str, theirs: bool) -> None:
    sandbox(tmp_path, "sandbox", program)
    assert nvidia_runtime.default(tmp_path, ["gone", "sandbox"]) == program
    assert nvidia_runtime.runs(tmp_path, "sandbox") == theirs
    assert not nvidia_runtime.runs(tmp_path, "gone")


def test_the_newest_sandbox_shows_the_default(tmp_path: Path) -> None:
    """The default may have changed while pods of the earlier default still run."""
    for order, (sandbox_id, program) in enumerate((("old", "/usr/bin/runc"), ("new", NVIDIA))):
        os.utime(sandbox(tmp_path, sandbox_id, program), (order, order))
    for ids in (["old", "new"], ["new", "old"]):
        assert nvidia_runtime.default(tmp_path, ids) == NVIDIA
    assert nvidia_runtime.default(tmp_path, ["old"]) == "/usr/bin/runc"


@pytest.mark.parametrize(
    ("place", "config", "accepted"),
    [
        ("etc", f"{ACCEPT} = true\n[nvidia-container-cli]\n", Toolkit()),
        ("etc", f"{ACCEPT} = false\n", REFUSES),
        ("usr/local/nvidia/toolkit/.config", f"{ACCEPT} = false", REFUSES),
        ("etc", f"{MOUNTS} = true\n", Toolkit(of_mounts=True)),
        ("etc", 'swarm-resource = "ANY"\n', Toolkit(other_variables="ANY")),
        ("etc", "not TOML", Toolkit()),
    ],
)
def test_the_toolkits_file(tmp_path: Path, place: str, config: str, accepted: Toolkit) -> None:
    put(tmp_path / place / "nvidia-container-runtime/config.toml", config)
    assert nvidia_runtime.toolkit(NVIDIA, tmp_path) == accepted


def test_other_variables_are_a_problem_of_the_node(tmp_path: Path) -> None:
    for toolkit in (Toolkit(), replace(REFUSES, other_variables="ANY")):
        assert nvidia_runtime.problem(NVIDIA, toolkit, tmp_path) == ""
    found = nvidia_runtime.problem(NVIDIA, Toolkit(other_variables="ANY"), tmp_path)
    assert "remove swarm-resource from /etc/nvidia-container-runtime/config.toml" in found
