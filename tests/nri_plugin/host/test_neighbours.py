"""Agent, library, arbiter and scheduler of neighbouring releases on one node, in both orders: each
meets files and annotations of a synthetic release before or after this one.

The agent mounts its own release of the library: test_store.py. The region: test_files.py of the
contract. Annotations: test_grants.py and test_allocation.py there.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from gpuslice.contract import (
    allocation,
    grant_file,
    grants,
    names,
)
from nri_plugin.host.files import RunDirectory
from nri_plugin.policy import annotation_claims, recovery
from nri_plugin.policy.model import Gpu, Pod, Share
from nri_plugin.policy.recovery import Running, Stray
from nri_plugin.policy.refusals import FilesError
from tests.nri_plugin.objects import clear, planned
from tests.support import GIB

pytestmark = pytest.mark.node

SHARES: Final = (Share("GPU-1", 3, 5 * GIB, 40),)
GPUS: Final = (Gpu("GPU-1", 3, 40 * GIB),)
ENTRY: Final = allocation.DeviceEntry(3, {names.RESOURCE_MEMORY: 5 * GIB}, "GPU-1")
ANNOTATIONS: Final = {
    names.ANNOTATION_DEVICE_ALLOCATED: allocation.encode(allocation.Allocation({"gpu": (ENTRY,)})),
    names.ANNOTATION_GRANTS: grants.encode({"main": [grants.GpuGrant("GPU-1", 3, 5 * GIB, 40)]}),
}
NEIGHBOURS: Final = (-1, 1)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    run = RunDirectory(tmp_path / "run", lambda: 7)
    yield run
    clear(run)


def of_neighbour(path: Path, step: int) -> None:
    """Make the grant one of another version, as its agent writes it."""
    data = bytearray(path.read_bytes())
    for base in (0, grant_file.COPY_STRIDE):
        struct.pack_into(
            "<I", data, base + grant_file.HEAD.offset("version"), grant_file.VERSION + step
        )
        end = base + grant_file.CHECKSUM_OFFSET
        struct.pack_into("<I", data, end, binascii.crc32(data[base:end]))
    path.write_bytes(data)


@pytest.mark.parametrize("step", NEIGHBOURS)
def test_a_container_of_another_grant_version_keeps_its_files_and_its_share(
    step: int, run: RunDirectory, tmp_path: Path
) -> None:
    """Its library has the limit in force. The agent cannot change it, counts the share by the
    annotation, and reports the container."""
    run.apply(planned("c1", SHARES))
    grant = tmp_path / "run/c1/grant"
    of_neighbour(grant, step)
    before = grant.read_bytes()
    pod = Pod("uid", "default", "pod", {}, ANNOTATIONS)
    found = recovery.survey(
        [Running("c1", "main", pod, "c1")], run.grants(["c1"]), GPUS, annotation_claims
    )
    assert found.users == {"c1": {"c1"}}
    assert [hold.parts["GPU-1"].memory_bytes for hold in found.holds] == [5 * GIB]
    assert [stray for stray, _ in found.strays] == [Stray.FILES_LOST]
    assert grant.read_bytes() == before


@pytest.mark.parametrize("step", NEIGHBOURS)
def test_a_second_container_of_a_shared_grant_of_another_version_is_refused(
    step: int, run: RunDirectory, tmp_path: Path
) -> None:
    """New files would be a second limit beside that of the container that runs."""
    run.apply(planned("pod-u", SHARES, shared=True))
    of_neighbour(tmp_path / "run/pod-u/grant", step)
    inode = (tmp_path / "run/pod-u/region").stat().st_ino
    with pytest.raises(FilesError, match=f"version {grant_file.VERSION + step}, of another rel"):
        run.apply(planned("pod-u", SHARES, shared=True))
    assert (tmp_path / "run/pod-u/region").stat().st_ino == inode
