"""The runtime that listens, its configuration, and how NRI is turned on on each platform."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_plugin.doctor import containerd, nri_instructions, platform
from nri_plugin.doctor.checks import examine
from nri_plugin.doctor.facts import Level, Runtime, Socket
from tests.nri_plugin import host_files
from tests.nri_plugin.doctor.whole_node import WHOLE, config
from tests.nri_plugin.host_files import put

OS, UBUNTU, COS = "etc/os-release", "ID=ubuntu\n", "ID=cos\n"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd/config"
RKE2 = "/var/lib/rancher/rke2/agent/etc/containerd/config"
PLATFORMS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "aks": ({OS: UBUNTU, "etc/kubernetes/azure.json": "{}"}, "--os-sku Ubuntu2404, AzureLinux3"),
    "bottlerocket": ({OS: 'ID="bottlerocket"\n'}, "aws-k8s-1.33-nvidia"),
    "eks": ({OS: 'ID="amzn"\n', "usr/bin/nodeadm": ""}, "or in its NodeConfig:"),
    "flatcar": (
        {"usr/lib/os-release": "ID=flatcar\nID_LIKE=coreos\n"},
        "CONTAINERD_CONFIG in a drop-in of containerd.service",
    ),
    "gke": ({OS: COS, "home/kubernetes/bin/kubelet": ""}, "a node pool of GKE 1.33 or later"),
    "k3s": ({K3S[1:] + ".toml": ""}, f"{K3S}-v3.toml.d"),
    "rke2": ({RKE2[1:] + ".toml": ""}, f"{RKE2}-v3.toml.d"),
    "talos": ({OS: 'NAME="Talos"\nID=talos\n'}, "path: /etc/cri/conf.d/20-customization.part"),
}
"""Files that only a node of the platform has, and a part of the advice how to turn NRI on there."""


def test_the_platforms_are_those_with_instructions() -> None:
    assert PLATFORMS.keys() == nri_instructions.NRI.keys()


@pytest.mark.parametrize(
    ("name", "files"),
    [
        *((name, files) for name, (files, _) in PLATFORMS.items()),
        ("", {OS: UBUNTU, "etc/containerd/config.toml": ""}),
        ("", {OS: "ID='unclosed\n"}),
    ],
)
def test_a_node_is_known_by_its_files(name: str, files: Mapping[str, str], tmp_path: Path) -> None:
    for path, text in files.items():
        put(tmp_path / path, text)
    assert platform.find(tmp_path) == name


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


@pytest.mark.parametrize("name", PLATFORMS)
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
    assert found.do.startswith("turn NRI on: ") and PLATFORMS[name][1] in found.do


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Path]:
    with host_files.listening(tmp_path / "the nri.sock") as server:
        server.setblocking(False)
        yield tmp_path / "the nri.sock"
        with pytest.raises(BlockingIOError):
            server.accept()  # fails, because the inspection has not connected


def test_a_listener_is_found_without_connecting(listening: Path) -> None:
    """The listener is this Python, whose configuration the doctor does not know."""
    by_a_link = listening.parent / "link"
    by_a_link.symlink_to(listening.parent)
    for path in (listening, by_a_link / listening.name):
        assert containerd.inspect_socket(path) == Socket(True, True)
    in_pod = listening.parent / "host"
    assert containerd.inode(put(in_pod / listening.relative_to("/")), in_pod) is not None
    found = containerd.inspect_runtime([Path("/absent"), listening], Path("/c.toml"))
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert "python" in (found.name or "")
    assert found.problem == f"the configuration of {found.name} is not examined"
    assert (found.config, found.config_file) == (None, "/c.toml")


def test_where_nothing_listens_the_file_is_read(tmp_path: Path) -> None:
    path, config = tmp_path / "nri.sock", tmp_path / "config.toml"
    with host_files.bound(path):
        assert containerd.inspect_socket(path) == Socket(True, False)
    assert containerd.inspect_socket(config) == Socket(False, False)
    assert containerd.inspect_runtime([path], config).config is None
    config.write_text("version = 3\n")
    found = containerd.inspect_runtime([path], config)
    assert found.config == {"version": 3}
    assert found.problem == f"no process is seen that listens at {path}"
    assert containerd.inspect_socket(config) == Socket(True, False, f"{config} is not a socket")
    assert containerd.inspect_socket(config / "below").problem is not None


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("", "/etc/containerd/config.toml"),
        ("-c /a.toml --log-level=debug", "/a.toml"),
        ("--config=/b.toml", "/b.toml"),
        ("--address /s --config /c.toml", "/c.toml"),
        ("--config", "/etc/containerd/config.toml"),
    ],
)
def test_the_configuration_that_a_command_line_names(words: str, file: str) -> None:
    assert containerd.config_of(["containerd", *words.split()]) == file


def test_the_runtimes_program_runs_by_the_name_that_it_was_started_by(tmp_path: Path) -> None:
    """A multi-call binary such as that of k3s needs it."""
    (tmp_path / "k3s").symlink_to(sys.executable)
    process = containerd.Process(os.getpid(), [str(tmp_path / "k3s")])
    program = "import sys; print(sys.orig_argv[0])"
    assert containerd.run(process, "-Sc", program) == f"{tmp_path}/k3s\n"
    for said, problem in (("'usage:\\nno such flag'", "no such flag"), ("3", "no message")):
        with pytest.raises(containerd.CommandError, match=f"^{problem}$"):
            containerd.run(process, "-Sc", f"import sys; sys.exit({said})")
