"""The scheduler's judges of the table of pods: the reader's texts, and the Binding's grants."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from gpuslice.contract import grants, names
from gpuslice.contract.dialects import DIALECTS
from scheduler.core.fleet import MAX_BYTES
from scheduler.core.place import Placement, place
from scheduler.core.request import ContainerRequest
from scheduler.dialects.reading import RequestError
from scheduler.kubernetes import binding, requests
from tests.requests import kai_rows
from tests.requests.row import Row, identity, shown
from tests.requests.rows import GRANTED, HAMIS_REFUSED, REFUSED, UNREADABLE, VOLCANOS_REFUSED
from tests.scheduler.core import one_node

ALL = frozenset(each.name for each in DIALECTS)
OFF = ((VOLCANOS_REFUSED, "volcano"), (HAMIS_REFUSED, "hami"), (kai_rows.REFUSED, "kai"))


@pytest.mark.parametrize("row", [*REFUSED, *UNREADABLE], ids=identity)
def test_the_reader_refuses(row: Row) -> None:
    with pytest.raises(RequestError) as refused:
        requests.request(row.pod, ALL)
    assert str(refused.value) == row.says


@pytest.mark.parametrize("row", GRANTED, ids=identity)
def test_the_reader_requests_and_the_binding_grants(row: Row) -> None:
    read = requests.request(row.pod, ALL)
    assert shown(read) == row.says
    if read is not None:
        near = [
            replace(gpu, numa=0, root="a", labels={"a": "b"})
            for gpu in one_node.gpus(16, MAX_BYTES)
        ]
        fleet = one_node.fleet(of=near)
        placed = place(fleet, read, fleet.row_of("n1"))
        assert isinstance(placed, Placement), placed
        written = grants.decode(binding.annotations_of(placed)[names.ANNOTATION_GRANTS])
        assert {
            name: [(gpu.memory_bytes, gpu.core_percent) for gpu in gpus]
            for name, gpus in written.items()
        } == {
            each.name: [(each.bytes_of(MAX_BYTES), each.core_percent or 100)] * each.gpus
            for each in read.containers
        }


@pytest.mark.parametrize(
    ("row", "dialect"),
    [(row, dialect) for rows, dialect in OFF for row in rows if "privileged" not in row.says],
    ids=lambda each: each if isinstance(each, str) else identity(each),
)
def test_a_dialect_that_is_off_is_refused_with_its_switch(row: Row, dialect: str) -> None:
    """Whatever the value. Whole GPUs are a device plugin's."""
    if row.says.startswith(f"container main: {names.RESOURCE_NVIDIA_GPU}: invalid value 17"):
        return
    with pytest.raises(RequestError, match=f"must be absent, as the dialect {dialect} is off; set"):
        requests.request(row.pod)


@pytest.mark.parametrize("row", kai_rows.NOTHING, ids=identity)
def test_while_the_dialect_is_off_a_pod_without_a_share_is_accepted(row: Row) -> None:
    assert requests.request(row.pod) is None


@pytest.mark.parametrize(
    ("total", "ratio", "size"),
    [
        (24 << 30, Fraction(1, 10), 2576980377),
        (24 << 30, Fraction(33, 100), 8504035246),
        (46068 << 20, Fraction(1, 3), 16101933056),
        (46068 << 20, Fraction(57, 100), 27534305525),
        (83201216 << 10, Fraction(1, 2), 41600608 << 10),
    ],
)
def test_a_ratio_is_the_floor_of_the_bytes_that_koordinator_writes(
    total: int, ratio: Fraction, size: int
) -> None:
    assert ContainerRequest("main", memory_ratio=ratio).bytes_of(total) == size
