"""The judges of a load detect errors: in the accounts, and in a container's report of its share."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest

from gpuslice.contract import grant_file
from tests.load import inside
from tests.load.accounts import Share, books
from tests.load.inside import Size
from tests.support import GIB

DEVICES = [
    {
        "metadata": {"name": node},
        "spec": {
            "devices": [
                {
                    "id": f"GPU-{node}-{minor}",
                    "minor": minor,
                    "resources": {"koordinator.sh/gpu-memory": "80Gi"},
                }
                for minor in (0, 1)
            ]
        },
    }
    for node in ("n1", "n2")
]


def pod(uid: str, percent: int, node: str = "", *minors: int, **changed: Any) -> dict[str, Any]:
    """minors: the GPUs allocated to it; changed: fields of its grants."""
    asked = {
        "koordinator.sh/gpu.shared": str(len(minors) or 1),
        "koordinator.sh/gpu-core": str(percent * (len(minors) or 1)),
        "koordinator.sh/gpu-memory-ratio": str(percent * (len(minors) or 1)),
    }
    made: dict[str, Any] = {
        "metadata": {"namespace": "storm", "name": uid, "uid": uid},
        "spec": {"containers": [{"name": "main", "resources": {"requests": asked}}]},
        "status": {"phase": "Pending"},
    }
    if node:
        made["spec"]["nodeName"] = node
        size = 80 * GIB * percent // 100
        shares = [
            {"id": f"GPU-{node}-{m}", "minor": m, "memory": size, "core": percent} | changed
            for m in minors
        ]
        resources = {"koordinator.sh/gpu-memory": str(size), "koordinator.sh/gpu-core": percent}
        entries = [{"id": s["id"], "minor": s["minor"], "resources": resources} for s in shares]
        made["metadata"]["annotations"] = {
            "gpuslice.io/grants": json.dumps({"v": 1, "containers": {"main": shares}}),
            "scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": entries}),
        }
    return made


@pytest.mark.parametrize(
    ("pods", "text"),
    [
        ([pod("a", 60, "n1", 0), pod("b", 50, "n1", 0)], "n1, minor 0: "),
        ([pod("a", 60, "n1", 0, memory=1)], "asked"),
        ([pod("a", 60, "n1", 0, minor=1)], "no GPU of its node"),
        ([pod("a", 60, "n1", 0, core=61)], "asked"),
    ],
)
def test_inconsistent_accounts_are_reported(pods: list[dict[str, Any]], text: str) -> None:
    assert any(text in line for line in books(pods, DEVICES).wrong)


def test_waiting_pods_that_fit_are_found() -> None:
    full = [pod(f"full-{m}", 100, "n1", m) for m in (0, 1)]
    almost = [pod("a", 60, "n2", 0), pod("b", 80, "n2", 1)]
    waiting = [pod("c", 40), pod("d", 41), pod("e", 20, "", 0, 1), pod("f", 21, "", 0, 1)]
    for each in waiting[2:]:
        each["spec"].pop("nodeName", None)
    assert books([*full, *almost, *waiting], DEVICES).fitting == {"c", "e"}


# --- a container's report

_SIZE = Size(1000 << 20, 100 << 20)
_SHARE = Share(1, 50, 30)
_UUID = "GPU-a"


def line(
    smi: str = "GPU-a, 500;",
    core: str = "30",
    limit_bytes: int = 500 << 20,
    total: int = 500 << 20,
    more: int = 2,
    free: int = 400 << 20,
) -> str:
    grant = grant_file.Grant(7, (grant_file.Gpu(_UUID, limit_bytes, 30, 0),))
    sealed = base64.b64encode(gzip.compress(grant_file.fresh(grant), mtime=0)).decode()
    taken = {"context": 0, "total": total, "free": free, "filled": 0, "more": more}
    return f"look 3|{core}|{smi}|2|{sealed}|{json.dumps(taken)}"


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (line(smi="GPU-a, 1000;"), "nvidia-smi shows"),
        (line(core=""), "the variable of its core"),
        (line(limit_bytes=501 << 20), "its grant says"),
        (line(total=1000 << 20), "its program found"),
        (line(more=0), "its program found"),
        ("sh: cuda-probe: not found", "not a look"),
    ],
)
def test_an_incorrect_report_of_a_container_is_detected(said: str, wrong: str) -> None:
    assert wrong in inside.verdict(said, _SHARE, [_UUID], _SIZE)


def test_a_refusal_on_a_full_gpu_is_no_error() -> None:
    short = line(more=0, free=300 << 20)
    assert inside.is_short(short, _SHARE, _SIZE)
    assert inside.verdict(short, _SHARE, [_UUID], _SIZE) == ""
    assert not inside.is_short(line(more=0), _SHARE, _SIZE)
    more = line(more=0, free=300 << 20, total=1000 << 20)
    assert "its program found" in inside.verdict(more, _SHARE, [_UUID], _SIZE)
