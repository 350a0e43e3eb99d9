"""The doctor's advice where NRI is off: each platform's own way to turn it on."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_plugin.doctor import nri_instructions, platform
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


def test_the_machine_configuration_of_talos_turns_nri_on() -> None:
    _, _, text = nri_instructions.NRI["talos"].partition("\n")
    (file,) = yaml.safe_load(text)["machine"]["files"]
    assert file["path"] == "/etc/cri/conf.d/20-customization.part"
    assert _turns_on(file["content"])


def test_the_node_configuration_of_eks_turns_nri_on() -> None:
    _, _, text = nri_instructions.NRI["eks"].partition("\n")
    assert _turns_on(yaml.safe_load(text)["spec"]["containerd"]["config"])


@pytest.mark.parametrize("name", ["flatcar", "k3s", "rke2"])
def test_the_lines_of_the_others_turn_nri_on(name: str) -> None:
    text = nri_instructions.NRI[name]
    assert _turns_on(text[text.index("[plugins.") :])


def _turns_on(toml: str) -> bool:
    return tomllib.loads(toml)["plugins"]["io.containerd.nri.v1.nri"]["disable"] is False


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
    assert (found.level, found.do) == (Level.FAIL, f"turn NRI on: {nri_instructions.NRI[name]}")
