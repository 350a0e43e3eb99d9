"""A GPU node of each platform: the chart's pod is ready there, and a share is held to its limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.node.cri import CriError
from tests.platforms import eks, flatcar, gpu_operator, tree, ubuntu
from tests.platforms.node import Node, running
from tests.platforms.table import DOCUMENT, PLATFORMS, YES, Row, committed, document, examine
from tests.support import until

pytestmark = pytest.mark.node


@pytest.fixture(autouse=True)
def _built(build_dir: object) -> None:
    """Require the build of the simulated driver."""


VARIANTS = {
    **{each.toolkit.recorded or "no spec": each for each in ubuntu.EARLIER if each.toolkit},
    "Flatcar with sysexts": flatcar.WITH_SYSEXTS,
    "EKS 1.31, CDI is off": eks.WITHOUT_CDI,
}


@pytest.mark.parametrize("name", PLATFORMS)
def test_a_platforms_node_is_as_the_document_says(name: str) -> None:
    row = examine(PLATFORMS[name])
    assert list(committed()[row.platform.name]) == [*row.cells()], "run: python -m tests.platforms"


@pytest.mark.parametrize("node", VARIANTS)
def test_another_release_or_layout_is_like_the_platforms_newest(node: str) -> None:
    assert examine(VARIANTS[node]).ready == YES


def test_the_agent_follows_a_driver_container_that_starts_late_and_again(build_dir: Path) -> None:
    with running(gpu_operator.PLATFORM) as node:
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
    """Return whether a share runs. A refusal counts as no, because the kubelet repeats the creation
    until the agent has looked at the driver again."""
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
