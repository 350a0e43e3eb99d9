"""The file `lease`: a writer that may be killed at any byte, and readers that see old or new."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract import lease_file
from gpuslice.contract.layout import Write
from gpuslice.contract.lease_file import Lease
from tests.contract.writes import apply

times = st.integers(0, 2**64 - 1)
parts = st.integers(0, lease_file.WHOLE_PPM)
leases = st.builds(Lease, times, times, times, parts, parts, st.booleans())


@given(st.lists(leases, min_size=1, max_size=4), st.integers(0, 15))
def test_the_newest_lease_is_read_back(written: list[Lease], gpu: int) -> None:
    data = lease_file.fresh(16, launches_checked=True)
    assert len(data) == lease_file.FILE_BYTES
    assert lease_file.decode(data, gpu) is None
    for number, lease in enumerate(written, 1):
        data = apply(data, list(lease_file.update(gpu, number, lease)))
    assert lease_file.decode(data, gpu) == (len(written), written[-1])
    assert all(lease_file.decode(data, other) is None for other in range(16) if other != gpu)


@given(leases, leases, st.data())
def test_a_writer_killed_anywhere_leaves_the_old_lease_or_the_new(
    old: Lease, new: Lease, data: st.DataObject
) -> None:
    before = apply(lease_file.fresh(1, launches_checked=True), list(lease_file.update(0, 1, old)))
    writes = list(lease_file.update(0, 2, new))
    whole = data.draw(st.integers(0, len(writes) - 1))
    cut = data.draw(st.integers(0, len(writes[whole].data)))
    partial = Write(writes[whole].offset, writes[whole].data[:cut])
    torn = apply(before, [*writes[:whole], partial])
    assert lease_file.decode(torn, 0) in ((1, old), (2, new))


def test_a_reader_never_sees_a_new_number_before_its_content() -> None:
    content, number = lease_file.update(3, 7, Lease(1))
    assert (len(number.data), content.offset) == (8, number.offset + 8)


def test_launches_checked_is_one_aligned_word() -> None:
    data = lease_file.fresh(1, launches_checked=False)
    write = lease_file.check_launches(True)
    assert write.offset % 4 == 0 and len(write.data) == 4
    assert apply(data, [write]) == lease_file.fresh(1, launches_checked=True)


@pytest.mark.parametrize("count", [0, 17])
def test_a_number_of_gpus_that_does_not_fit_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="must be 1 to 16"):
        lease_file.fresh(count, launches_checked=True)
