"""The region read by Python through the C header equals what its processes report."""

from __future__ import annotations

import dataclasses

import pytest

from contract import names, region_file
from shim import layout, region
from tests.shim.region.core import Box

pytestmark = pytest.mark.sim


def test_the_header_and_the_contract_agree() -> None:
    """Sizes by the compiler's rules, and the numbers."""
    for struct, declared in (
        ("vgpu_region_header", region_file.HEADER),
        ("vgpu_region_gpu", region_file.GPU),
        ("vgpu_region_slot", region_file.SLOT),
        ("vgpu_region_slot_gpu", region_file.SLOT_GPU),
    ):
        assert layout.size(struct) == declared.size, struct
    assert layout.constants.VGPU_REGION_MAGIC == region_file.MAGIC
    assert layout.constants.VGPU_MAX_SLOTS == names.MAX_SLOTS


def test_every_holder_is_listed_with_what_it_holds(box: Box) -> None:
    box = dataclasses.replace(box, gpu_count=2)
    box.write()
    with box.shell() as first, box.shell() as second:
        assert first.ask("reserve 0 1000") == "OK"
        assert second.ask("reserve 1 7") == "OK"
        listed = {holder.pid: tuple(holder.bytes) for holder in region.holders(box.directory)}
        assert listed == {first.pid: (1000, 0), second.pid: (0, 7)}
        assert second.ask("detach") == "OK"
        assert [holder.pid for holder in region.holders(box.directory)] == [first.pid]


def test_a_truncated_region_is_named(box: Box) -> None:
    box.region.write_bytes(box.region.read_bytes()[:-1])
    with pytest.raises(region.RegionDirectoryError, match="truncated"):
        region.holders(box.directory)


def test_nothing_is_read_beyond_the_bytes() -> None:
    with pytest.raises(ValueError, match="of 63 bytes"):
        layout.over(bytes(63), "vgpu_region_slot", 0)
