"""What a template's name means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lab.cluster.fleet_objects import Gpu, Node, slice_json
from scheduler.claims.templates import lacks_size, sizes, template


def _requests(name: str, of_sizes: Sequence[int]) -> list[Any]:
    made = template(name, of_sizes)
    assert made is not None
    found: list[Any] = made["spec"]["spec"]["devices"]["requests"]
    return found


def _amounts(name: str, of_sizes: Sequence[int]) -> dict[str, tuple[str, str, int]]:
    """Return memory, core and number of GPUs of each alternative."""
    (request,) = _requests(name, of_sizes)
    alternatives = request.get("firstAvailable") or [{"name": "", **request["exactly"]}]
    return {
        each["name"]: (
            each["capacity"]["requests"]["memory"],
            each["capacity"]["requests"]["core"],
            each["count"],
        )
        for each in alternatives
    }


def test_a_percentage_has_an_alternative_in_bytes_for_each_size() -> None:
    """Rounded down, so that 100 percent divided into equal parts fit."""
    assert _amounts("gpuslice-c30-r33", [23040, 81559]) == {
        "m23040": ("7603Mi", "30", 1),
        "m81559": ("26914Mi", "30", 1),
    }
    assert _amounts("gpuslice-c100-r100-g2", [40960]) == {"m40960": ("40Gi", "100", 2)}
    (request,) = _requests("gpuslice-c30-r33", [23040])
    (selector,) = request["firstAvailable"][0]["selectors"]
    assert selector["cel"]["expression"] == (
        "device.capacity['gpuslice.io'].memory.compareTo(quantity('23040Mi')) == 0"
    )


def test_bytes_are_the_same_on_each_size() -> None:
    assert _amounts("gpuslice-c0-m10240-g3", [23040, 81559]) == {"": ("10Gi", "0", 3)}


@pytest.mark.parametrize(
    "name", ["other", "gpuslice-c101-r50", "gpuslice-c50", "gpuslice-c50-r50-x", "xgpuslice-c1-r1"]
)
def test_other_names_are_not_ours(name: str) -> None:
    assert template(name, [23040]) is None


def test_without_a_gpu_there_is_no_template() -> None:
    assert template("gpuslice-c50-r50", sizes([])) is None


def test_the_eight_most_frequent_sizes_count() -> None:
    gpus = [
        Gpu(f"GPU-{size}-{each}", each, size << 30)
        for size in range(10, 20)
        for each in range(1 if size in (12, 17) else 2)
    ]
    frequent = [size << 10 for size in range(10, 20) if size not in (12, 17)]
    assert sizes([slice_json(Node("n", tuple(gpus)))]) == frequent


def test_only_a_new_size_makes_a_template_stale() -> None:
    both, one = (template("gpuslice-c50-r50", each) for each in ([23040, 81559], [23040]))
    assert both and one
    assert lacks_size(one, both) and not lacks_size(both, one)
    exact = [template("gpuslice-c50-m512", each) for each in ([23040], [81559])]
    assert exact[0] and exact[1] and not lacks_size(exact[0], exact[1])
