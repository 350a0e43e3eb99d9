"""The scheduler's refusals and grants for the pods in the tables of tests/requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuslice.contract import grants, names
from gpuslice.contract.dialects import DIALECTS
from scheduler.core.fleet import MAX_BYTES
from scheduler.dialects.reading import RequestError
from scheduler.kubernetes import binding, requests
from tests.requests import kai_rows
from tests.requests.row import Row, identity, shown
from tests.requests.rows import GRANTED, HAMIS_REFUSED, REFUSED, UNREADABLE, VOLCANOS_REFUSED
from tests.scheduler.core.one_node import fleet, gpus, placed

ALL = frozenset(each.name for each in DIALECTS)
NEAR = [replace(gpu, numa=0, root="a", labels={"a": "b"}) for gpu in gpus(16, MAX_BYTES)]
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
        annotations = binding.annotations_of(placed(fleet(of=NEAR[: row.gpus]), read))
        written = grants.decode(annotations[names.ANNOTATION_GRANTS])
        granted = {
            name: [(gpu.memory_bytes, gpu.core_percent) for gpu in gpus]
            for name, gpus in written.items()
        }
        assert granted == {
            each.name: [(each.bytes_of(MAX_BYTES), each.core_percent or 100)] * each.gpus
            for each in read.containers
        }


@pytest.mark.parametrize(
    ("row", "dialect"),
    [(row, dialect) for rows, dialect in OFF for row in rows if "privileged" not in row.says],
    ids=lambda each: each if isinstance(each, str) else identity(each),
)
def test_a_dialect_that_is_off_is_refused_with_its_switch(row: Row, dialect: str) -> None:
    """Values do not matter. A row with 17 whole GPUs is skipped: a device plugin grants them."""
    if row.says.startswith(f"container main: {names.RESOURCE_NVIDIA_GPU}: invalid value 17"):
        return
    with pytest.raises(RequestError, match=f"must be absent, as the dialect {dialect} is off; set"):
        requests.request(row.pod)


@pytest.mark.parametrize("row", [*kai_rows.NOTHING, kai_rows.UNKNOWN[0]], ids=identity)
def test_while_the_dialect_is_off_a_pod_without_a_share_is_accepted(row: Row) -> None:
    assert requests.request(row.pod) is None
