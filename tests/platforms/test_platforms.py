"""A GPU node of each platform: the chart's pod is ready there, and a share is held to its limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.node.cri import CriError
from nri_plugin.doctor import platform as doctor
from tests.platforms import gpu_operator, tree, ubuntu
from tests.platforms.node import Node
from tests.platforms.platform import Platform
from tests.platforms.table import DOCUMENT, PLATFORMS, YES, Row, committed, document, examine
from tests.support import until

pytestmark = pytest.mark.node


@pytest.fixture(autouse=True)
def _built(build_dir: object) -> None:
    """The simulated driver is built."""


KNOWN_AS = {
    "aks": "aks",
    "bottlerocket": "bottlerocket",
    "eks": "eks",
    "flatcar": "flatcar",
    "gke_cos": "gke",
    "gke_ubuntu": "gke",
    "k3s": "k3s",
    "rke2": "rke2",
    "talos": "talos",
}
"""By module of tests/platforms, where the platform has a way of its own."""


@pytest.mark.parametrize("name", PLATFORMS)
def test_a_platforms_node_is_known(name: str, tmp_path: Path) -> None:
    node = PLATFORMS[name]
    system = "".join(f'{key}="{value}"\n' for key, value in node.os.items())
    files = {"/etc/os-release": system, node.containerd.file: "", **node.files}
    for path, text in {**files, f"{node.driver.libraries}/libcuda.so.1": ""}.items():
        file = tmp_path / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert doctor.find(tmp_path) == KNOWN_AS.get(name, "")


@pytest.mark.parametrize("name", PLATFORMS)
def test_a_platforms_node_is_as_the_document_says(name: str) -> None:
    row = examine(PLATFORMS[name])
    assert list(committed()[row.platform.name]) == [*row.cells()], "run: python -m tests.platforms"


@pytest.mark.parametrize(
    "platform", ubuntu.EARLIER, ids=lambda each: each.toolkit.recorded or "without a spec"
)
def test_earlier_releases_of_the_toolkit_are_like_the_newest(platform: Platform) -> None:
    assert examine(platform).ready == YES


def test_the_agent_follows_a_driver_container_that_starts_late_and_again(build_dir: Path) -> None:
    with Node(gpu_operator.PLATFORM) as node:
        namespace, driver = node.lab.namespace, gpu_operator.PLATFORM.driver
        tree.stop_driver_container(namespace)
        node.start_agent()
        assert node.outcome("GPUs are not known")
        tree.start_driver_container(namespace, build_dir, driver)
        assert not node.outcome()
        until(lambda: _runs(node), "a share has the driver")
        tree.stop_driver_container(namespace)
        tree.start_driver_container(namespace, build_dir, driver)
        until(lambda: _runs(node), "a share has the driver again")
        assert not node.outcome()


def _runs(node: Node) -> bool:
    """The kubelet repeats what is refused between two looks of the agent at the driver."""
    try:
        node.check_limit()
    except CriError:
        return False
    return True


def test_the_document_has_all_platforms_and_at_least_ten_need_no_value() -> None:
    rows = [Row(each, each.change.words if each.change else YES) for each in PLATFORMS.values()]
    assert len(rows) == 13
    assert sum(row.ready == YES for row in rows) >= 10
    assert DOCUMENT.read_text() == document(rows), "run: python -m tests.platforms"
