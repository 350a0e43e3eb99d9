"""A pod's annotations are bounded before it costs work or memory for each node.

An annotation has up to 256 KiB. The extender repeats a refusal for each candidate node.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuslice.contract.dialects import DIALECTS
from scheduler.dialects.reading import MAX_REFUSAL, RequestError
from scheduler.kubernetes import requests

ALL = frozenset(each.name for each in DIALECTS)
HINT = "scheduling.koordinator.sh/device-allocate-hint"
LONG = "x" * 250_000
GPUMEM, RATIO = "nvidia.com/gpumem", "koordinator.sh/gpu-memory-ratio"


def pod(scheduler: str, asked: dict[str, str], **annotations: str) -> dict[str, Any]:
    main = {"name": "main", "resources": {"limits": asked, "requests": asked}}
    return {
        "metadata": {"annotations": annotations},
        "spec": {"schedulerName": scheduler, "containers": [main]},
    }


def hinted(selector: object) -> dict[str, Any]:
    hint = json.dumps({"gpu": {"selector": selector}})
    return pod("gpuslice-scheduler", {RATIO: "1"}, **{HINT: hint})


@pytest.mark.parametrize(
    ("raw", "begins", "ends"),
    [
        (
            pod("kai-scheduler", {}, **{"gpu-memory": "9" * 250_000}),
            "metadata.annotations[gpu-memory]: invalid value 99",
            "must be at most 268435456 MiB",
        ),
        (
            pod(
                "kai-scheduler", {}, **{"gpu-fraction": "0.5", "gpu-fraction-container-name": LONG}
            ),
            "container with name xx",
            "xx not found for fraction request",
        ),
        (
            pod("", {GPUMEM: "1"}, **{"hami.io/gpu-scheduler-policy": LONG}),
            "metadata.annotations[hami.io/gpu-scheduler-policy]: invalid value 'xx",
            "must be one of binpack, spread",
        ),
        (
            pod("", {GPUMEM: "1"}, **{"nvidia.com/use-gputype": " " * 250_000}),
            "metadata.annotations[nvidia.com/use-gputype]: invalid value '  ",
            "must be names, separated by commas",
        ),
        (
            pod("", {RATIO: "1"}, **{"gpuslice.io/policy": LONG}),
            "metadata.annotations[gpuslice.io/policy]: invalid value 'xx",
            "must be one of binpack, spread",
        ),
        (
            hinted({"matchLabels": {"x" * 9000: 1}}),
            f"metadata.annotations[{HINT}]: gpu.selector.matchLabels.xx",
            "invalid value 1: must be a string",
        ),
    ],
)
def test_a_refusal_of_a_long_value_is_short(raw: dict[str, Any], begins: str, ends: str) -> None:
    refusal = requests.pending(raw, ALL).refusal
    assert len(refusal) <= MAX_REFUSAL
    assert refusal.startswith(begins) and refusal.endswith(ends)


@pytest.mark.parametrize("key", ["use-gputype", "nouse-gputype", "use-gpuuuid", "nouse-gpuuuid"])
def test_a_list_of_hamis_has_a_limit(key: str) -> None:
    """Each UUID is hashed, and compared with each GPU of the cluster, at every filter."""
    key = f"nvidia.com/{key}"
    assert requests.request(pod("", {GPUMEM: "1"}, **{key: ",".join(["GPU-1"] * 1000)}), ALL)
    with pytest.raises(RequestError) as refused:
        requests.request(pod("", {GPUMEM: "1"}, **{key: ",".join(["GPU-1"] * 1001)}), ALL)
    assert str(refused.value) == (
        f"metadata.annotations[{key}]: invalid value of 1001 names: must be at most 1000 names;"
        " use the node's annotation gpuslice.io/excluded-gpus, or a nodeSelector"
    )


def test_a_hint_has_a_limit() -> None:
    with pytest.raises(RequestError) as refused:
        requests.request(hinted({"matchLabels": {f"k{n}": "v" for n in range(9000)}}))
    assert str(refused.value) == (
        f"metadata.annotations[{HINT}]: invalid value of 124930 characters: must have at most 16384"
    )
