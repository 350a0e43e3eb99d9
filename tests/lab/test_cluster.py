"""The arguments of `make cluster`: which GPUs, and which dialects."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.cluster.__main__ import CommandError, dialects, gpus
from lab.cluster.product import values


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("2x23040Mi", [23040 << 20] * 2),
        ("40Gi", [40 << 30]),
        ("1x80GiB,2x40Gi", [80 << 30, 40 << 30, 40 << 30]),
    ],
)
def test_gpus_are_a_count_and_a_size(text: str, sizes: list[int]) -> None:
    assert gpus(text) == sizes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be COUNTxSIZE"),
        ("2x40Gi,", "must be COUNTxSIZE"),
        ("0x40Gi", "at least one"),
        ("1x1", "a positive multiple"),
        ("60x1Gi,5x1Gi", "GPUs: must be 1 to 64"),
    ],
)
def test_other_texts_for_gpus_are_refused_with_the_expected_form(text: str, says: str) -> None:
    with pytest.raises(CommandError, match=says):
        gpus(text)


def test_dialects_are_values_of_the_chart() -> None:
    chosen = values("https://198.18.1.1:6443", Path("/c"), Path("/g"), [], ["kai", "hami"])
    assert chosen["global"] == {"gpuSharing": True}
    assert chosen["dialects"] == {"hami": {"enabled": True}}
    assert not {"global", "dialects"} & values("https://h", Path("/c"), Path("/g"), []).keys()


def test_an_unknown_dialect_is_refused_with_the_choices() -> None:
    assert dialects("") == []
    assert dialects("kai,volcano") == ["kai", "volcano"]
    with pytest.raises(
        CommandError, match="--dialects: invalid value 'kia': must be some of kai, volcano, hami"
    ):
        dialects("kai,kia")
