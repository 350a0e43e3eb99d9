"""The policy's rows about images, and about volumes that interfere."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.contract import names
from lab.node.catalogue import (
    DIRECTORY_IN_PLACE_IMAGE,
    FILE_IN_PLACE_IMAGE,
    LINKED_PRELOAD_IMAGE,
    NIX_PRELOAD_IMAGE,
    OWN_PRELOAD,
    PRELOAD_IMAGE,
    PYTHON_IMAGE,
)
from lab.node.cri import CriError, Process
from lab.node.lab import Lab

from .scene import (
    HALF,
    OWN,
    agent_with,
    granted,
    one,
    probe,
    refused,
    refused_at_start,
    said,
    sample,
)

pytestmark = pytest.mark.node

STATIC = Process(PYTHON_IMAGE, ("busybox", "sleep", "1000000"))
OURS = f"{names.CONTAINER_LIBRARY}\n"
BOTH = f"{OURS}{OWN_PRELOAD}\n"


@pytest.mark.parametrize(
    ("image", "place"),
    [(PRELOAD_IMAGE, names.CONTAINER_PRELOAD), (NIX_PRELOAD_IMAGE, names.CONTAINER_PRELOAD_NIX)],
)
def test_an_image_with_a_preload_file(lab: Lab, image: str, place: str) -> None:
    """The preload file of Nix is only read, because no loader of Nix' glibc is on this machine."""
    with granted(lab, Process(image)) as container:
        assert probe(container).held_to(HALF)
        assert container.exec(["cat", place]).out == BOTH
        # The file is ours and read-only, as in any container.
        assert container.exec(["sh", "-c", f"echo >{place}"]).code != 0


def test_an_image_with_a_preload_file_in_a_pod_of_koordinators(lab: Lab) -> None:
    with lab.pod("koordinator", lab.allocated([(0, HALF, 50)])) as pod:
        container, side = pod.run("main", Process(PRELOAD_IMAGE)), pod.run("side", OWN)
        for each, preloads in ((container, BOTH), (side, OURS)):
            assert each.exec(["cat", names.CONTAINER_PRELOAD]).out == preloads
            assert probe(each).held_to(HALF)
        assert OWN_PRELOAD in container.exec(["cat", "/proc/self/maps"]).out
        # The container is recreated from another image, and has nothing of the first image's.
        container.stop()
        again = pod.create("main", OWN, attempt=1)
        again.start()
        assert again.exec(["cat", names.CONTAINER_PRELOAD]).out == OURS


def test_an_image_with_a_linked_preload_file(lab: Lab) -> None:
    test = "test_an_image_with_a_linked_preload_file"
    refused_at_start(lab, Process(LINKED_PRELOAD_IMAGE), test)


@pytest.mark.parametrize("image", [FILE_IN_PLACE_IMAGE, DIRECTORY_IN_PLACE_IMAGE])
def test_an_image_with_files_at_the_agents_mount_points(lab: Lab, image: str) -> None:
    with lab.pod("in-the-way", one(lab)) as pod:
        with pytest.raises(CriError, match="not a directory"):
            pod.run("main", Process(image))
        assert not probe(pod.run("side", Process(image))).driver


def test_a_static_entry_point(lab: Lab) -> None:
    counted = "gpuslice_limit_not_enforceable_total"
    before = sample(lab, counted)
    with granted(lab, STATIC) as container:
        assert probe(container).held_to(HALF)
        assert said(lab, names.EVENT_LIMIT_NOT_ENFORCEABLE, container)
        assert sample(lab, counted) == before + 1
    with lab.pod("ungranted") as pod:
        assert not said(lab, names.EVENT_LIMIT_NOT_ENFORCEABLE, pod.run("main", STATIC))
    with agent_with(lab, "--unenforceable", "refuse"):
        refused_at_start(lab, STATIC, "test_a_static_entry_point")


def test_a_volume_of_the_hosts_limits(lab: Lab, tmp_path: Path) -> None:
    """A container with a grant is refused if a volume shows the run directory, also through a
    link. A container without a grant starts."""
    (tmp_path / "link").symlink_to(lab.directory)
    behind_it = tmp_path / "link" / lab.run_dir.relative_to(lab.directory)
    whole = Process(PYTHON_IMAGE, mounts={"/host": lab.directory})
    linked = Process(PYTHON_IMAGE, mounts={"/host": behind_it})
    with lab.pod("hosted", one(lab)) as pod, refused("test_a_volume_of_the_hosts_limits"):
        pod.create("main", whole)
    refused_at_start(lab, linked, "test_a_volume_of_the_hosts_limits")
    for written in ({}, lab.share({"other": [(0, HALF, 50)]})):
        for process in (whole, linked, Process(PYTHON_IMAGE, read_mounts={"/host": Path("/")})):
            with lab.pod("agent", written) as pod:
                assert pod.run("main", process).exec(["true"]).code == 0
