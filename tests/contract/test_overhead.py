"""The measured overhead: lasting differences count after three samples, transient ones never."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contract.overhead import WINDOW, Overhead, Sample

_BYTES = st.integers(0, 2**40)
_SAMPLES = st.lists(st.builds(Sample, _BYTES, _BYTES, _BYTES), max_size=12)


def test_what_nothing_explains_is_overhead() -> None:
    assert Sample(held_bytes=1000, imported_bytes=0, charged_bytes=600).overhead_bytes == 400
    assert Sample(held_bytes=1000, imported_bytes=300, charged_bytes=600).overhead_bytes == 100
    assert Sample(held_bytes=500, imported_bytes=0, charged_bytes=600).overhead_bytes == 0


@given(_SAMPLES)
def test_it_is_the_least_of_the_last_samples(samples: list[Sample]) -> None:
    overhead = Overhead()
    for number, sample in enumerate(samples, 1):
        measured = overhead.add(sample)
        recent = samples[max(0, number - WINDOW) : number]
        least = min(one.overhead_bytes for one in recent)
        assert measured == (least if number >= WINDOW else None)
