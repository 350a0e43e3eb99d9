"""How a pod's dialect is found. A dialect of a few lines works from filter to bind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from copy import deepcopy
from fractions import Fraction
from typing import Any

import pytest
import yaml

from gpuslice.contract import grants, names
from gpuslice.contract.dialects import DIALECTS, Dialect
from scheduler.core.fleet import Gpu
from scheduler.core.place import Placement
from scheduler.core.request import Policy
from scheduler.dialects import table
from scheduler.dialects.reading import MAX_REFUSAL, Outputs, PodFields, Reading, RequestError
from scheduler.kubernetes import requests
from tests.requests.pods import asking, of_kai, of_volcano, pod
from tests.scheduler import calls, objects
from tests.scheduler.binder.scene import Scene, scene_of
from tests.scheduler.pod_server import Fate
from tests.support import ROOT

Gi = objects.Gi
EIGHTHS = "toy.example/eighths"
TOY = Dialect("toy", "dialects.toy.enabled", "toy", annotations=(EIGHTHS,))
ON = frozenset({"koordinator", "toy"})
NOTICE = "an eighth is little"
KEY = f"metadata.annotations[{EIGHTHS}]"
UIDS = [f"u-{number}" for number in range(9)]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_the_chart_has_the_value_that_turns_a_dialect_on(dialect: Dialect) -> None:
    value = yaml.safe_load((ROOT / "manifests/chart/values.yaml").read_text())
    for key in dialect.switch.split(".") if dialect.switch else ():
        value = value[key]
    assert value is False or not dialect.switch


# --- a dialect of a few lines


def read_toy(pod: PodFields) -> Reading | None:
    """Read a dialect whose annotation requests eighths of a GPU for the first container."""
    text = pod.annotations.get(EIGHTHS)
    if text is None:
        return None
    if text not in ("1", "2", "3"):
        raise RequestError(f"{KEY}: invalid value {text}: must be 1 to 3")
    first = pod.containers[0]

    def outputs(placement: Placement, gpus: Sequence[Gpu], now_ns: int) -> Outputs:
        total = {gpu.uuid: gpu.total_bytes for gpu in gpus}[placement.shares[0].uuid]
        written = {"toy.example/at": str(now_ns), "toy.example/total": str(total)}
        return Outputs(written, {first.name: {"TOY_EIGHTHS": text}}, "index")

    request = first.request(1, None, memory_ratio=Fraction(int(text), 8))
    return Reading([request], notices=[NOTICE], outputs=outputs)


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.READERS, TOY, read_toy)


def eighths(uid: str = "u-1", count: str = "1") -> dict[str, Any]:
    return calls.pod(uid, objects.container("main"), annotations={EIGHTHS: count})


@pytest.fixture
def at() -> AbstractAsyncContextManager[Scene]:
    """A scene with one node that has a GPU of 24 GiB, and with the toy dialect on."""
    state = calls.state(nodes=1, gpus=1)
    state.dialects = ON
    return scene_of(*map(eighths, UIDS), state=state)


async def test_a_dialect_is_a_table_and_a_reader(at: Scene) -> None:
    """Eight eighths fill a GPU to the byte, and the ninth is refused. Each Binding contains what
    the dialect adds."""
    for uid in UIDS[:8]:
        assert at.ask(eighths(uid)) == {"NodeNames": ["n0"]}
        assert await at.bind(uid) == ""
    off = "must be absent, as the dialect toy is off; set dialects.toy.enabled to true"
    assert requests.pending(eighths()).refusal == f"{KEY}: invalid value 1: {off}"
    assert at.state.fleet.free_bytes[at.state.fleet.row_of("n0"), 0] == 0
    (said,) = at.ask(eighths("u-8"))["FailedAndUnresolvableNodes"].values()
    assert said.endswith("(largest free slice 0 of the 12.5 percent requested)")
    first = at.server.bindings[0]["metadata"]["annotations"]
    assert (first["toy.example/at"], first["toy.example/total"]) == ("1001", str(24 * Gi))
    allocated = json.loads(first[names.ANNOTATION_DEVICE_ALLOCATED])["gpu"][0]["resources"]
    assert allocated == {names.RESOURCE_MEMORY: "3Gi", names.RESOURCE_MEMORY_RATIO: "12"}
    granted = grants.parse(first[names.ANNOTATION_GRANTS])
    assert granted.containers["main"][0].memory_bytes == 3 * Gi
    assert (granted.environment, granted.by_index) == ({"main": {"TOY_EIGHTHS": "1"}}, True)
    noticed = {each.uid: each.notices for each in at.binder.take_notices()}
    assert noticed == {uid: [NOTICE] for uid in UIDS[:8]}
    assert (await at.bind("u-0"), at.binder.take_notices()) == ("", [])


async def test_a_binding_sent_again_is_the_same(monkeypatch: pytest.MonkeyPatch, at: Scene) -> None:
    """The API server may have applied the first Binding, so the second has equal annotations."""
    monkeypatch.setattr("scheduler.binder.WORK_S", 0.0)
    at.server.posts.append(Fate.STORE_TIMES_OUT)
    at.ask(eighths())
    assert "not confirmed" in await at.bind()
    at.server.touch("pod-u-1")
    at.ask(at.server.pods["pod-u-1"])
    await at.bind()
    first, second = (each["metadata"]["annotations"] for each in at.server.bindings[:2])
    assert first == second
    assert first["toy.example/at"] == "1001"


# --- annotations beside a request

HINT = names.ANNOTATION_ALLOCATE_HINT
ALL = frozenset(each.name for each in DIALECTS)
OF_EACH = {
    "koordinator": pod(asking({names.RESOURCE_MEMORY_RATIO: "50"})),
    "kai": of_kai({"gpu-fraction": "0.5"}),
    "volcano": of_volcano(asking({"volcano.sh/vgpu-number": "1"})),
    "hami": pod(asking({"nvidia.com/gpumem": "3000"})),
}


def annotated(dialect: str, key: str, value: str) -> requests.Pending:
    raw = deepcopy(OF_EACH[dialect])
    raw["metadata"].setdefault("annotations", {})[key] = value
    return requests.pending(raw, ALL)


@pytest.mark.parametrize("dialect", OF_EACH)
def test_our_own_policy_is_read_in_every_dialect(dialect: str) -> None:
    found = annotated(dialect, names.ANNOTATION_POLICY, "spread").request
    assert found is not None and found.policy is Policy.SPREAD
    assert "'Spread': must be" in annotated(dialect, names.ANNOTATION_POLICY, "Spread").refusal
    assert "'Fair': must be" in annotated(dialect, names.ANNOTATION_COMPUTE, "Fair").refusal


def test_the_dialects_own_policy_precedes_ours_with_a_notice() -> None:
    ours = {names.ANNOTATION_POLICY: "spread"}
    raw = of_volcano(asking({"volcano.sh/gpu-memory": "128"}), annotations=ours)
    found = requests.pending(raw, ALL)
    assert found.request is not None and found.request.policy is Policy.FIRST
    assert found.notices == [
        "metadata.annotations[gpuslice.io/policy]: spread has no effect: the pod's dialect chooses"
        " first"
    ]


@pytest.mark.parametrize(
    ("dialect", "key", "of"),
    [
        ("koordinator", "nvidia.com/use-gputype", "hami"),
        ("kai", HINT, "koordinator"),
        ("volcano", "nvidia.com/nouse-gpuuuid", "hami"),
    ],
)
def test_a_hint_of_another_dialect_is_reported(dialect: str, key: str, of: str) -> None:
    found = annotated(dialect, key, "x")
    assert found.refusal == "" and list(found.notices) == [
        f"metadata.annotations[{key}] has no effect: only the dialect {of} reads it, and the pod"
        f" requests shares in the dialect {dialect}"
    ]


LONG = "x" * 250_000
LONG_LABEL = json.dumps({"gpu": {"selector": {"matchLabels": {LONG[:9000]: 1}}}})
CHOICES = "nvidia.com/gpucores: 100"


@pytest.mark.parametrize(
    ("dialect", "key", "value", "begins", "ends"),
    [
        ("kai", "gpu-fraction-num-devices", "9" * 250_000, "invalid value 99", "must be 1 to 16"),
        ("hami", "hami.io/gpu-scheduler-policy", LONG, "invalid value 'xx", CHOICES),
        ("hami", "nvidia.com/use-gputype", " " * 250_000, "invalid value '  ", "by commas"),
        ("koordinator", HINT, LONG_LABEL, "gpu.selector.matchLabels.xx", "1: must be a string"),
        ("koordinator", HINT, LONG, "invalid value of 250000 characters", "at most 16384"),
    ],
)
def test_a_long_value_is_cut(dialect: str, key: str, value: str, begins: str, ends: str) -> None:
    """An annotation may have 256 KiB, and a refusal is sent once for each candidate node."""
    refusal = annotated(dialect, key, value).refusal
    assert len(refusal) <= MAX_REFUSAL
    assert refusal.startswith(f"metadata.annotations[{key}]: {begins}") and refusal.endswith(ends)
    assert annotated("koordinator", HINT, "{}".ljust(16384)).refusal == ""
    assert [len(str(RequestError("x" * length))) for length in (1024, 1025)] == [1024, 1023]
