"""The host's directories: which are chosen, where they are seen, and what a missing one says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuslice.gpu import driver_root
from gpuslice.gpu.host_view import HostView
from nri_plugin.command_line import from_arguments
from nri_plugin.host import bundle, discovery
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


# --- the driver root


def install(root: Path, below: str) -> Path:
    library = root / below / driver_root.NVML
    library.parent.mkdir(parents=True, exist_ok=True)
    library.touch()
    return library


@pytest.mark.parametrize(
    ("below", "expected"),
    [
        ("usr/lib/x86_64-linux-gnu", "/"),
        ("usr/lib64", "/"),
        ("home/kubernetes/bin/nvidia/lib64", "/home/kubernetes/bin/nvidia"),
        ("run/nvidia/driver/usr/lib/x86_64-linux-gnu", "/run/nvidia/driver"),
        ("var/lib/nvidia/lib64", "/var/lib/nvidia"),
        ("usr/local/lib64", "/usr/local"),
    ],
)
def test_the_driver_root_is_where_nvml_lies(root: Path, below: str, expected: str) -> None:
    assert driver_root.locate(root) is None
    install(root, below)
    assert driver_root.locate(root) == Path(expected)


def test_gpu_operators_file_comes_first_while_it_is_right(root: Path) -> None:
    install(root, "usr/lib64")
    other = install(root, "data/driver/usr/lib64")
    file = root / driver_root.READY.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text("IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/data/driver\nNVIDIA_DEV_ROOT=/\n")
    assert driver_root.locate(root) == Path("/data/driver")
    other.unlink()
    assert driver_root.locate(root) == Path("/"), "the driver container has gone"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("NVIDIA_DRIVER_ROOT=/run/nvidia/driver", "/run/nvidia/driver"),
        (' NVIDIA_DRIVER_ROOT="/"\r\n', "/"),
        ("DRIVER_ROOT_CTR_PATH=/host\n", ""),
        ("NVIDIA_DRIVER_ROOT=relative\n", ""),
        ("NVIDIA_DRIVER_ROOT=/../etc\n", ""),
        ("\0\n=\nNVIDIA_DRIVER_ROOT", ""),
    ],
)
def test_what_gpu_operators_file_may_hold(text: str, found: str) -> None:
    assert driver_root.ready(text) == found
