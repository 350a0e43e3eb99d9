"""Other programs that allocate GPUs: their sockets, their claims, and the kubelet's record; and
NVIDIA's runtime."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from nri_plugin.host import device_plugins, nvidia_runtime
from nri_plugin.host.device_plugins import Assignments, RecordError
from nri_plugin.policy.nvidia import Toolkit
from nri_plugin.policy.other_plugins import Sign
from tests.nri_plugin.service_scene import sandbox

UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"


def write(directory: Path, assigned: Mapping[str, Sequence[str]], resource: str) -> None:
    """Write the record as the kubelet does, by rename. assigned: by the pod's UID."""
    entries = [
        {
            "PodUID": uid,
            "ContainerName": "main",
            "ResourceName": resource,
            "DeviceIDs": {"-1": list(ids)},
        }
        for uid, ids in assigned.items()
    ]
    new = directory / ".new"
    new.write_text(json.dumps({"Data": {"PodDeviceEntries": entries}}))
    new.rename(directory / device_plugins.RECORD)


@pytest.mark.parametrize(
    ("resource", "identity"),
    [
        ("nvidia.com/gpu", UUID),
        ("nvidia.com/gpu.shared", f"{UUID}::1"),  # NVIDIA's time slices
        ("nvidia.com/gpu", f"{UUID}-3"),  # HAMi's and Volcano's replicas
        ("aliyun.com/gpu-mem", f"{UUID}-_-7"),
        ("nvidia.com/gpu", "nvidia2"),  # Google's
        ("nvidia.com/gpu", "nvidia2/vgpu0"),
    ],
)
def test_the_pods_of_a_gpu_by_the_ids_of_plugins(
    tmp_path: Path, resource: str, identity: str
) -> None:
    write(tmp_path, {"uid-1": [identity]}, resource)
    assigned = Assignments(tmp_path)
    assert assigned.pods(UUID, 2) == {"uid-1"}
    assert assigned.pods("GPU-bbbbbbbb-0000-0000-0000-000000000000", 20) == set()


def test_a_record_that_changed_is_read_again(tmp_path: Path) -> None:
    assigned = Assignments(tmp_path)
    assert assigned.pods(UUID, 0) == set(), "the kubelet has written none"
    write(tmp_path, {"uid-1": [UUID]}, "nvidia.com/gpu")
    assert assigned.pods(UUID, 0) == {"uid-1"}
    write(tmp_path, {"uid-1": [UUID], "uid-2": [UUID]}, "nvidia.com/gpu")
    assert assigned.pods(UUID, 0) == {"uid-1", "uid-2"}
    (tmp_path / device_plugins.RECORD).write_text("{")
    for _ in range(2):
        with pytest.raises(RecordError):
            assigned.pods(UUID, 0)
    (tmp_path / device_plugins.RECORD).unlink()
    assert assigned.pods(UUID, 0) == set()


def test_a_plugin_that_listens_is_a_sign(tmp_path: Path) -> None:
    path = tmp_path / "nvidiaGPU-1700000000.sock"
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(path))
        assert device_plugins.plugin_sign(tmp_path) is None, "no process listens"
        theirs.listen()
        sign = device_plugins.plugin_sign(tmp_path)
    assert sign == Sign(f"a device plugin listens on {path}", is_gke=True)


@pytest.mark.parametrize(
    ("place", "is_sign"),
    [
        ("plugins/gpu.nvidia.com/dra.sock", True),
        ("plugins/gpu.nvidia.com/dra-0f0f.sock", True),  # with rolling updates
        ("plugins_registry/gpu.nvidia.com-reg.sock", True),
        ("plugins_registry/gpu.nvidia.com-0f0f-reg.sock", True),
        ("plugins_registry/compute-domain.nvidia.com-reg.sock", False),
        ("plugins/compute-domain.nvidia.com/dra.sock", False),
        ("plugins_registry/example.com-reg.sock", False),
    ],
)
def test_a_dra_driver_that_listens_is_a_sign(short: Path, place: str, is_sign: bool) -> None:
    """NVIDIA's other driver allocates channels between nodes, no GPU."""
    path = short / place
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(path))
        assert device_plugins.dra_sign(short, []) is None, "no process listens"
        theirs.listen()
        sign = device_plugins.dra_sign(short, [])
    expected = Sign(f"NVIDIA's DRA driver listens on {path}", is_dra=True)
    assert sign == (expected if is_sign else None)


def test_a_claim_that_is_prepared_is_a_sign(tmp_path: Path) -> None:
    """Its pod has the GPU, also while the driver does not run."""
    assert device_plugins.dra_sign(tmp_path, [tmp_path / "missing", tmp_path]) is None
    (tmp_path / "nvidia.yaml").touch()
    assert device_plugins.dra_sign(tmp_path, [tmp_path]) is None
    claim = tmp_path / "k8s.gpu.nvidia.com-claim_0f0f.yaml"
    claim.touch()
    sign = device_plugins.dra_sign(tmp_path, [tmp_path])
    assert sign is not None and sign.is_dra and str(claim) in sign.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0::/system.slice/nvidia-k8s-device-plugin.service\n", "nvidia-k8s-device-plugin.service"),
        (
            "0::/../../../system.slice/nvidia-device-plugin.service\n",
            "nvidia-device-plugin.service",
        ),
        (
            "12:cpu:/\n1:name=systemd:/system.slice/x.service\n0::/system.slice/x.service\n",
            "x.service",
        ),
        ("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-0f0f.scope\n", ""),
        ("0::/kubepods/besteffort/pod1/0f0f\n", ""),
        ("0::/\n", ""),
    ],
)
def test_the_unit_of_a_process(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(text)
    assert device_plugins.unit(7, tmp_path) == expected
    assert device_plugins.unit(8, tmp_path) == "", "it is in another PID namespace"


def test_the_unit_is_that_of_the_process_that_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def unit(pid: int) -> str:
        asked.append(pid)
        return "nvidia-device-plugin.service"

    monkeypatch.setattr(device_plugins, "unit", unit)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(tmp_path / "nvidia-gpu.sock"))
        theirs.listen()
        sign = device_plugins.plugin_sign(tmp_path)
    assert asked == [os.getpid()]
    assert sign is not None and sign.service == "nvidia-device-plugin.service"
    assert sign.text.endswith("nvidia-gpu.sock, the host's nvidia-device-plugin.service")


# --- NVIDIA's runtime, found in the bundles that containerd wrote, and its configuration

NVIDIA = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
ACCEPT = "accept-nvidia-visible-devices-envvar-when-unprivileged"
MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"


@pytest.mark.parametrize(
    ("program", "theirs"),
    [
        (NVIDIA, True),
        ("/usr/bin/nvidia-container-runtime.cdi", True),
        ("nvidia-container-runtime", True),
        ("/usr/bin/runc", False),
        ("", False),
    ],
)
def test_the_program_of_a_sandbox(tmp_path: Path, program: str, theirs: bool) -> None:
    sandbox(tmp_path, "sandbox", program)
    assert nvidia_runtime.default(tmp_path, ["gone", "sandbox"]) == program
    assert nvidia_runtime.runs(tmp_path, "sandbox") == theirs
    assert not nvidia_runtime.runs(tmp_path, "gone")


def test_the_newest_sandbox_shows_the_default(tmp_path: Path) -> None:
    """The default may have become NVIDIA's runtime while pods of the one before run."""
    for order, (sandbox_id, program) in enumerate((("old", "/usr/bin/runc"), ("new", NVIDIA))):
        os.utime(sandbox(tmp_path, sandbox_id, program), (order, order))
    for ids in (["old", "new"], ["new", "old"]):
        assert nvidia_runtime.default(tmp_path, ids) == NVIDIA
    assert nvidia_runtime.default(tmp_path, ["old"]) == "/usr/bin/runc"


@pytest.mark.parametrize(
    ("place", "config", "accepted"),
    [
        ("etc", "", Toolkit()),
        ("etc", f"{ACCEPT} = true\n[nvidia-container-cli]\n", Toolkit()),
        ("etc", f"{ACCEPT} = false\n", Toolkit(of_unprivileged=False)),
        ("usr/local/nvidia/toolkit/.config", f"{ACCEPT} = false", Toolkit(of_unprivileged=False)),
        ("etc", f"{MOUNTS} = true\n", Toolkit(of_mounts=True)),
        ("etc", 'swarm-resource = "ANY"\n', Toolkit(other_variables="ANY")),
        ("etc", "not TOML", Toolkit()),
        ("opt", f"{ACCEPT} = false\n", Toolkit()),
    ],
)
def test_the_toolkits_configuration(
    tmp_path: Path, place: str, config: str, accepted: Toolkit
) -> None:
    file = tmp_path / place / "nvidia-container-runtime/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(config)
    assert nvidia_runtime.toolkit(NVIDIA, tmp_path) == accepted


def test_other_variables_are_a_problem_of_the_node(tmp_path: Path) -> None:
    def problem(toolkit: Toolkit) -> str:
        return nvidia_runtime.problem(NVIDIA, toolkit, tmp_path)

    assert problem(Toolkit()) == ""
    assert problem(Toolkit(of_unprivileged=False, other_variables="ANY")) == ""
    assert "remove swarm-resource from /etc/nvidia-container-runtime/config.toml" in problem(
        Toolkit(other_variables="ANY")
    )
