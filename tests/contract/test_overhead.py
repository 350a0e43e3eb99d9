"""The measured overhead: lasting differences count after three samples, transient ones never."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract.overhead import CODE_BYTES, WINDOW, Overhead

MIB, GIB = 1 << 20, 1 << 30
_BYTES = st.integers(0, 2**40)
_SAMPLES = st.lists(st.tuples(_BYTES, _BYTES), max_size=12)


def lasting(held_bytes: int, charged_bytes: int) -> int | None:
    """Return the overhead after enough equal samples."""
    overhead = Overhead()
    return [overhead.add(held_bytes, charged_bytes) for _ in range(WINDOW)][-1]


def test_what_nothing_explains_is_overhead() -> None:
    assert lasting(held_bytes=1000, charged_bytes=600) == 400
    assert lasting(held_bytes=500, charged_bytes=600) == 0


@pytest.mark.parametrize("importers", [1, 3])
@pytest.mark.parametrize("exported_bytes", [256 * MIB, 8 * GIB])
def test_shared_memory_hides_nothing_of_the_drivers(exported_bytes: int, importers: int) -> None:
    """A process exports memory and others import it. On an H200 NVML lists that memory for the
    exporter alone, and the region counts it once."""
    context_bytes, own_bytes = 518 * MIB, 2 * GIB
    charged_bytes = exported_bytes + (1 + importers) * (context_bytes + CODE_BYTES)
    held_bytes = exported_bytes + (1 + importers) * context_bytes + own_bytes
    assert lasting(held_bytes, charged_bytes) == own_bytes - (1 + importers) * CODE_BYTES


@given(_SAMPLES)
def test_it_is_the_least_of_the_last_samples(samples: list[tuple[int, int]]) -> None:
    overhead = Overhead()
    for number, sample in enumerate(samples, 1):
        measured = overhead.add(*sample)
        recent = samples[max(0, number - WINDOW) : number]
        least = min(max(0, held - charged) for held, charged in recent)
        assert measured == (least if number >= WINDOW else None)
