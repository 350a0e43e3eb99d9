"""The host's directories: which are chosen, where they are seen, and what a missing one says; and
the driver's root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract import names
from gpuslice.gpu.driver_root import HostView
from nri_plugin.child import in_root
from nri_plugin.command_line import from_arguments
from nri_plugin.doctor.host import missing
from nri_plugin.host import bundle, cdi_reader, discovery
from nri_plugin.host.cdi_generator import render
from nri_plugin.host.driver_root import DriverRoot
from nri_plugin.policy.model import Gpu, Specs
from nri_plugin.settings import Settings

DOCKERS, K3S = Path("/run/containerd"), Path("/run/k3s/containerd")
TASKS = "io.containerd.runtime.v2.task/k8s.io"


@pytest.mark.parametrize(
    ("docker", "k3s", "chosen"),
    [
        (None, None, DOCKERS),
        (None, 0, K3S),
        (0, 0, DOCKERS),
        (0, 5, K3S),
        (4, 5, K3S),
        (6, 5, DOCKERS),
    ],
    ids=["none", "one", "both", "docker beside k3s", "an old installation", "kubeadm"],
)
def test_the_state_directory_is_that_of_the_kubelets_containerd(
    tmp_path: Path, docker: int | None, k3s: int | None, chosen: Path
) -> None:
    """None: it does not exist. 0: it has no containers of Kubernetes. Else the time of the last."""
    for state, changed_s in ((DOCKERS, docker), (K3S, k3s)):
        if changed_s is not None:
            (tmp_path / state.relative_to("/")).mkdir(parents=True)
        if changed_s:
            tasks = tmp_path / state.relative_to("/") / TASKS
            tasks.mkdir(parents=True)
            os.utime(tasks, (changed_s, changed_s))
    assert discovery.containerd_state(HostView(tmp_path)) == chosen


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host's root, as a pod sees it."""
    for directory in ("proc", "run/k3s/containerd", "run/containerd", "var"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "var/run").symlink_to("/run")
    return tmp_path


def settings(root: Path, *options: str) -> Settings:
    return from_arguments(["--library", "/l", f"--host-root={root}", *options], {})


def test_paths_are_the_hosts_seen_below_its_root(root: Path) -> None:
    (root / "run/k3s/containerd" / TASKS).mkdir(parents=True)
    found = settings(root)
    assert found.containerd_state == root / "run/k3s/containerd"
    assert found.nri_socket == root / "run/nri/nri.sock"
    assert list(found.cdi_dirs) == [root / "etc/cdi", root / "run/cdi"]
    assert found.device_plugin_dir == root / "var/lib/kubelet/device-plugins"
    assert found.kubelet_dir == root / "var/lib/kubelet"
    assert found.run_dir == Path("/run/gpuslice"), "the same path in both"
    assert found.view.on_host(found.nri_socket) == Path("/run/nri/nri.sock")
    given = settings(root, "--containerd-state=/var/run/containerd", "--kubelet-dir=/data/kubelet")
    assert given.containerd_state == root / "run/containerd"
    assert given.kubelet_dir == root / "data/kubelet"


def test_the_kubelets_directory_is_the_one_with_its_socket(root: Path) -> None:
    socket = root / "var/lib/k0s/kubelet/pod-resources/kubelet.sock"
    socket.parent.mkdir(parents=True)
    socket.touch()
    assert settings(root).kubelet_dir == root / "var/lib/k0s/kubelet"


def test_what_is_missing_names_the_hosts_path_and_what_to_do(root: Path) -> None:
    found = settings(root)
    assert not discovery.missing(found.view, found.containerd_state)
    (root / "run/k3s/containerd").rmdir()
    (root / "run/containerd").rmdir()
    found = settings(root)
    (text,) = discovery.missing(found.view, found.containerd_state)
    assert text.startswith("/run/containerd does not exist: ")
    assert "set containerd.stateDir" in text and all(str(each) in text for each in bundle.STATES)
    nowhere = root / "nowhere"
    (text,) = discovery.missing(HostView(nowhere), found.containerd_state)
    assert text.startswith(f"{nowhere}: must be the host's root directory: mount the host's /")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may enter another root")
def test_a_program_of_the_host_runs_below_its_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's image has no other program than Python; the host here has busybox."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    (tmp_path / "only-here").mkdir()
    shutil.copy(busybox, tmp_path / "only-here/pwd")
    monkeypatch.setenv("PATH", "/nowhere")

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(in_root(tmp_path, command), text=True, capture_output=True)

    assert run("/only-here/pwd").stdout == "/\n"
    assert "No such file" in run("/only-here/none").stderr
    assert in_root(Path("/"), ["pwd"]) == ["pwd"]


# --- the driver root in two views: a spec generated below the agent's mount names the host's files

UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"


def spec(root: str) -> dict[str, Any]:
    """That of nvidia-ctk 1.18, shortened, with the files below that root."""
    hook = {"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk"}
    own = {
        "deviceNodes": [
            {"path": "/dev/nvidia0", "hostPath": f"{root}/dev/nvidia0"},
            {"path": f"{root}/dev/nvidiactl"},
        ]
    }
    common = {
        "env": ["NVIDIA_CTK=x"],
        "mounts": [{"hostPath": f"{root}/usr/lib64/libcuda.so.580", "containerPath": "/usr/lib64"}],
        "hooks": [
            {**hook, "args": ["nvidia-ctk", "--link", "/usr/lib64/a::/usr/lib64/b"]},
            {"hookName": "poststop", "path": f"{root}/bin/x", "args": [f"{root}/a::{root}/b"]},
        ],
    }
    devices = [{"name": UUID, "containerEdits": own}]
    document = {"cdiVersion": "0.6.0", "kind": names.CDI_KIND, "devices": devices}
    return {**document, "containerEdits": common}


@pytest.mark.parametrize("host", ["/", "/run/nvidia/driver"])
def test_a_generated_spec_names_the_hosts_files(host: str) -> None:
    root = DriverRoot(Path(host), Path("/driver-root"))
    text, problem = render(json.dumps(spec("/driver-root")).encode(), [UUID], root)
    wanted = spec(host.rstrip("/"))
    (nvidiactl,) = wanted["devices"][0]["containerEdits"]["deviceNodes"][1:]
    nvidiactl["hostPath"] = nvidiactl["path"]
    nvidiactl["path"] = "/driver-root/dev/nvidiactl"
    assert problem == "" and json.loads(text) == wanted


def test_what_a_spec_must_not_hold_stays_for_its_reader() -> None:
    root = DriverRoot(Path("/"), Path("/driver-root"))
    odd = {"devices": [{"name": "a", "containerEdits": 7}], "containerEdits": {"mounts": [None]}}
    odd["containerEdits"] |= {"hooks": 7, "deviceNodes": [{}]}  # type: ignore[operator]
    assert root.translate(odd) == odd


def test_files_are_looked_up_below_the_mount(tmp_path: Path) -> None:
    """A pod's own /dev has only the nodes of the time at which the pod was created."""
    cdi_dir, mount = tmp_path / "cdi", tmp_path / "driver-root"
    for place in ("usr/lib64", "usr/bin", "dev"):
        (mount / place).mkdir(parents=True)
    for node in ("nvidia-uvm", "nvidiactl", "real"):
        (mount / "dev" / node).touch()
    (mount / "dev/nvidia0").symlink_to("/dev/real")
    (mount / "usr/lib64/libcuda.so.580").touch()
    cdi_dir.mkdir()
    document = spec("/run/nvidia/driver")
    nodes = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
    document["devices"][0]["containerEdits"]["deviceNodes"] = [
        {"path": path, "hostPath": f"/run/nvidia/driver{path}"} for path in nodes
    ]
    document["containerEdits"]["mounts"][0]["containerPath"] = "/usr/lib64/libcuda.so.580"
    (cdi_dir / "nvidia.json").write_text(json.dumps(document))
    root = DriverRoot(Path("/run/nvidia/driver"), mount)
    seen: set[Path] = set()

    def status(path: str) -> os.stat_result:
        seen.add(root.seen(path))
        found = root.stat(path)
        return os.stat("/dev/null") if "/dev/" in path else found

    def load() -> Specs:
        return cdi_reader.load([cdi_dir], status=status)

    assert load().devices[UUID].problem is None
    assert seen >= {mount / "dev/real", mount / "usr/lib64/libcuda.so.580"}
    hook = ("/run/nvidia/driver/bin/x",)
    assert hook[0] in missing(Gpu(UUID, 0, 1), load(), root)
    (mount / "usr/lib64/libcuda.so.580").unlink()
    assert "/usr/lib64/libcuda.so.580: No such file" in str(load().devices[UUID].problem)


def test_the_options_of_nvidia_ctk(tmp_path: Path) -> None:
    mount = tmp_path / "driver-root"
    container = DriverRoot(Path("/run/nvidia/driver"), mount)
    assert container.options("") == (f"--driver-root={mount}", "--dev-root=/")
    (mount / "dev").mkdir(parents=True)
    (mount / "dev/nvidiactl").touch()
    assert container.options("/x") == (
        f"--driver-root={mount}",
        f"--dev-root={mount}",
        "--nvidia-cdi-hook-path=/x",
    )
    assert DriverRoot(Path("/"), mount).options("")[1] == f"--dev-root={mount}"


def test_hooks_run_a_program_of_the_host(tmp_path: Path) -> None:
    """runc executes a hook on the host, where the agent's image is not. A copy of the agent's own
    program knows all hooks that its nvidia-ctk writes; the host's may be older."""
    mount, programs = tmp_path / "driver-root", tmp_path / "vgpu"
    ours = tmp_path / "nvidia-ctk"
    ours.write_text("#!/bin/sh\n")
    ours.chmod(0o755)
    container = DriverRoot(Path("/run/nvidia/driver"), mount)
    for _ in range(2):
        assert container.hook([str(ours)], programs) == f"{programs}/nvidia-ctk"
    assert sorted(os.listdir(programs)) == [".lock", "nvidia-ctk"]
    assert (programs / "nvidia-ctk").stat().st_mode & 0o777 == 0o755
    ours.write_text("#!/bin/sh\n# newer\n")
    container.hook([str(ours)], programs)
    assert (programs / "nvidia-ctk").read_text() == ours.read_text()

    # The directory that stands for the host's root has no libraries: ours does not run there.
    root = DriverRoot(Path("/"), mount, mount)
    assert root.hook([str(ours)], programs) == ""
    (mount / "usr/bin").mkdir(parents=True)
    (mount / "usr/bin/nvidia-cdi-hook").write_text("#!/bin/sh\n")
    (mount / "usr/bin/nvidia-cdi-hook").chmod(0o755)
    assert root.hook([str(ours)], programs) == "/usr/bin/nvidia-cdi-hook"
    assert root.hook(["/nowhere/nvidia-ctk"], programs) == "/usr/bin/nvidia-cdi-hook"
