"""The doctor's view of the runtime: which one listens, with which configuration; and where NRI is
off, each platform's own way to turn it on."""

from __future__ import annotations

import socket
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_plugin.doctor import containerd, nri_instructions, platform
from nri_plugin.doctor.checks import examine
from nri_plugin.doctor.facts import Level, Runtime, Socket
from tests.nri_plugin.doctor.whole_node import WHOLE, config

MARKS = {
    "talos": {"etc/os-release": 'NAME="Talos"\nID=talos\n'},
    "bottlerocket": {"etc/os-release": 'ID="bottlerocket"\n'},
    "flatcar": {"usr/lib/os-release": "ID=flatcar\nID_LIKE=coreos\n"},
    "gke": {"etc/os-release": "ID=cos\n", "home/kubernetes/bin/kubelet": ""},
    "aks": {"etc/os-release": "ID=ubuntu\n", "etc/kubernetes/azure.json": "{}"},
    "eks": {"etc/os-release": 'ID="amzn"\n', "usr/bin/nodeadm": ""},
    "k3s": {"var/lib/rancher/k3s/agent/etc/containerd/config.toml": ""},
    "rke2": {"var/lib/rancher/rke2/agent/etc/containerd/config.toml": ""},
    "": {"etc/os-release": "ID=ubuntu\n", "etc/containerd/config.toml": ""},
}
"""Files that only such a node has."""
WAYS = {
    "aks": "--os-sku Ubuntu2404, AzureLinux3",
    "bottlerocket": "aws-k8s-1.33-nvidia",
    "eks": "or in its NodeConfig:",
    "flatcar": "CONTAINERD_CONFIG in a drop-in of containerd.service",
    "gke": "a node pool of GKE 1.33 or later",
    "k3s": "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d",
    "rke2": "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d",
    "talos": "path: /etc/cri/conf.d/20-customization.part",
}


@pytest.mark.parametrize("name", MARKS)
def test_a_node_is_known_by_its_files(name: str, tmp_path: Path) -> None:
    for path, text in MARKS[name].items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert platform.find(tmp_path) == name


def test_each_platform_has_a_mark() -> None:
    assert {*nri_instructions.NRI} == {*MARKS} - {""}


def test_a_host_that_cannot_be_read_is_no_platform(tmp_path: Path) -> None:
    assert platform.find(tmp_path / "absent") == ""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text("ID='unclosed\n")
    assert platform.find(tmp_path) == ""


@pytest.mark.parametrize("name", ["talos", "eks", "flatcar", "k3s", "rke2"])
def test_the_lines_of_a_platform_turn_nri_on(name: str) -> None:
    toml = nri_instructions.NRI[name]
    if name in ("talos", "eks"):
        document = yaml.safe_load(toml.partition("\n")[2])
        if name == "talos":
            (file,) = document["machine"]["files"]
            assert file["path"] == "/etc/cri/conf.d/20-customization.part"
            toml = file["content"]
        else:
            toml = document["spec"]["containerd"]["config"]
    found = tomllib.loads(toml[toml.index("[plugins.") :])
    assert found["plugins"]["io.containerd.nri.v1.nri"]["disable"] is False


@pytest.mark.parametrize("name", nri_instructions.NRI)
@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"socket": Socket(False, False)}, "nri-socket"),
        ({"runtime": Runtime("containerd", "v2.2.0", config(disable=True))}, "nri"),
    ],
    ids=["no socket", "off"],
)
def test_the_doctor_prints_the_platforms_way(name: str, change: dict[str, Any], check: str) -> None:
    facts = replace(WHOLE, platform=name, **change)
    (found,) = (each for each in examine(facts) if each.check == check)
    assert found.level is Level.FAIL
    assert found.do.startswith("turn NRI on: ") and WAYS[name] in found.do


# --- the process that listens at NRI's socket; this test's own process is the listener


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "nri.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.setblocking(False)
        yield path
        with pytest.raises(BlockingIOError):
            server.accept()  # no client has connected


def test_a_listener_is_found_without_connecting(listening: Path) -> None:
    assert containerd.inspect_socket(listening) == Socket(True, True)
    by_a_link = listening.parent / "link"
    by_a_link.symlink_to(listening.parent)
    assert containerd.inspect_socket(by_a_link / listening.name) == Socket(True, True)


def test_the_version_of_a_listener_is_found(listening: Path) -> None:
    """It is Python, for which there is no known configuration."""
    found = containerd.inspect_runtime([Path("/absent"), listening], None)
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert "python" in (found.name or "")
    assert found.problem == f"the configuration of {found.name} is not examined"
    assert found.config is None


def test_where_nothing_listens_the_file_is_read(tmp_path: Path) -> None:
    path, config = tmp_path / "nri.sock", tmp_path / "config.toml"
    assert containerd.inspect_socket(path) == Socket(False, False)
    assert containerd.inspect_runtime([path], config).config is None
    config.write_text("version = 3\n")
    found = containerd.inspect_runtime([path], config)
    assert found.config == {"version": 3}
    assert found.problem == f"no process is seen that listens at {path}"


def test_what_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = containerd.inspect_socket(tmp_path / "file")
    assert found.problem == f"{tmp_path / 'file'} is not a socket"
    assert containerd.inspect_socket(tmp_path / "file" / "below").problem is not None


@pytest.mark.parametrize(
    ("argv", "file"),
    [
        (["containerd"], "/etc/containerd/config.toml"),
        (["containerd", "-c", "/a.toml", "--log-level=debug"], "/a.toml"),
        (["containerd", "--config=/b.toml"], "/b.toml"),
        (["containerd", "--address", "/s", "--config", "/c.toml"], "/c.toml"),
        (["containerd", "--config"], "/etc/containerd/config.toml"),
    ],
)
def test_the_configuration_that_a_command_line_names(argv: list[str], file: str) -> None:
    assert containerd.config_of(argv) == file
