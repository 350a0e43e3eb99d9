"""Which dialect a pod uses, and a dialect of a few lines from filter to bind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Any

import pytest
import yaml

from gpuslice.contract import grants, names
from gpuslice.contract.dialects import DIALECTS, Dialect
from gpuslice.kube.client import Kube
from scheduler.binder import Binder
from scheduler.cache import _Pods
from scheduler.core.fleet import Gpu, GpuAmount
from scheduler.core.place import Placement
from scheduler.core.request import ContainerRequest, Policy
from scheduler.decisions.requeue import Unschedulable
from scheduler.decisions.sampling import Sampling
from scheduler.decisions.verbs import Verbs
from scheduler.dialects import table
from scheduler.dialects.reading import Outputs, PodFields, Reading, RequestError
from scheduler.kubernetes import requests
from scheduler.kubernetes.arguments import BindingArguments
from tests.scheduler import calls, objects
from tests.scheduler.lease_guards import ManualLeaseGuard
from tests.scheduler.pod_server import Fate, PodServer
from tests.support import ROOT

Gi = objects.Gi
EIGHTHS = "toy.example/eighths"
TOY = Dialect("toy", "dialects.toy.enabled", annotations=(EIGHTHS,))
ON = frozenset({"koordinator", "toy"})
KEY = f"metadata.annotations[{EIGHTHS}]"


def read_toy(pod: PodFields) -> Reading | None:
    """So many eighths of a GPU for the first container."""
    text = pod.annotations.get(EIGHTHS)
    if text is None:
        return None
    if text not in ("1", "2", "3"):
        raise RequestError(f"{KEY}: invalid value {text}: must be 1 to 3")
    first = pod.containers[0]
    request = ContainerRequest(
        first.name, first.phase, first.order, memory_ratio=Fraction(int(text), 8)
    )

    def outputs(placement: Placement, gpus: Sequence[Gpu], now_ns: int) -> Outputs:
        total = {gpu.uuid: gpu.total_bytes for gpu in gpus}[placement.shares[0].uuid]
        written = {"toy.example/at": str(now_ns), "toy.example/total": str(total)}
        return Outputs(written, {first.name: {"TOY_EIGHTHS": text}}, "index")

    return Reading([request], outputs=outputs)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_the_chart_has_the_value_that_turns_a_dialect_on(dialect: Dialect) -> None:
    value = yaml.safe_load((ROOT / "manifests/chart/values.yaml").read_text())
    for key in dialect.switch.split(".") if dialect.switch else ():
        value = value[key]
    assert value is False or not dialect.switch


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.READERS, TOY, read_toy)


class Scene:
    """One node with one GPU of 24 GiB, the verbs with the toy's dialect, and the API server."""

    def __init__(self, server: PodServer, kube: Kube) -> None:
        self.server, self.now_ns = server, 1_000
        self.state = calls.state(nodes=1, gpus=1)
        self.state.dialects = ON
        self.verbs = Verbs(self.state)
        self.watch = _Pods(self.state, Unschedulable(self.state), Sampling(self.state))
        self.binder = Binder(
            self.state, kube, ManualLeaseGuard(), self.verbs, lambda: 0.0, self._wall_ns
        )

    def _wall_ns(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def filter(self, raw: dict[str, Any]) -> dict[str, Any]:
        return calls.loads(self.verbs.filter(calls.arguments(raw, ["n0"])))

    async def bind(self, uid: str) -> str:
        arguments = BindingArguments("default", f"pod-{uid}", uid, "n0")
        return (await self.binder.bind(arguments)).error


def asking(uid: str = "u-1", eighths: str = "1") -> dict[str, Any]:
    return calls.pod(uid, objects.container("main"), annotations={EIGHTHS: eighths})


@pytest.fixture
@asynccontextmanager
async def at() -> AsyncIterator[Scene]:
    server = PodServer(*(asking(f"u-{number}") for number in range(9)))
    async with server.serving() as access, Kube(access) as kube:
        yield Scene(server, kube)


async def test_a_dialect_is_a_table_and_a_reader(
    at: Scene,
) -> None:
    """Eight eighths fill a GPU to the byte, the ninth is refused, and each Binding has what the
    dialect adds."""
    for number in range(8):
        assert at.filter(asking(f"u-{number}")) == {"NodeNames": ["n0"]}
        assert await at.bind(f"u-{number}") == ""
    assert at.state.fleet.free_bytes[at.state.fleet.row_of("n0"), 0] == 0
    (said,) = at.filter(asking("u-8"))["FailedNodes"].values()
    assert said.endswith("(largest free slice 0 of the 12.5 percent requested)")
    first = at.server.bindings[0]["metadata"]["annotations"]
    assert first["toy.example/at"] == "1001"
    assert first["toy.example/total"] == str(24 * Gi)
    allocated = json.loads(first[names.ANNOTATION_DEVICE_ALLOCATED])["gpu"][0]["resources"]
    assert allocated == {names.RESOURCE_MEMORY: "3Gi", names.RESOURCE_MEMORY_RATIO: "12"}
    granted = grants.parse(first[names.ANNOTATION_GRANTS])
    assert granted.containers["main"][0].memory_bytes == 3 * Gi
    assert (granted.environment, granted.by_index) == ({"main": {"TOY_EIGHTHS": "1"}}, True)


async def test_a_binding_that_is_sent_again_has_the_same_annotations(
    monkeypatch: pytest.MonkeyPatch, at: Scene
) -> None:
    """Those of the first may have been applied."""
    monkeypatch.setattr("scheduler.binder.WORK_S", 0.0)
    monkeypatch.setattr("scheduler.binder.POST_S", 0.3)
    at.server.posts.append(Fate.STORE_TIMES_OUT)
    at.filter(asking())
    assert "not confirmed" in await at.bind("u-1")
    at.server.touch("pod-u-1")
    at.filter(at.server.pods["pod-u-1"])
    await at.bind("u-1")
    first, second = (each["metadata"]["annotations"] for each in at.server.bindings[:2])
    assert first == second
    assert first["toy.example/at"] == "1001"
    at.watch.observed(at.server.pods["pod-u-1"])
    assert at.state.is_bound("u-1")


async def test_another_writers_annotations_are_read(
    at: Scene,
) -> None:
    at.filter(asking())
    assert await at.bind("u-1") == ""
    other = at.server.pods["pod-u-1"]
    text = objects.allocated(("GPU-n0-0", 0, objects.resources(memory="5Gi")))
    other["metadata"]["annotations"] = {names.ANNOTATION_DEVICE_ALLOCATED: text}
    at.watch.observed(other)
    (held,) = at.state.holders("n0")
    assert (held.gpu, held.amount) == ("GPU-n0-0", GpuAmount(0, 5 * Gi, None))


def refusal(raw: dict[str, Any], enabled: frozenset[str]) -> str:
    pending = requests.pending(raw, enabled)
    assert pending.request is None
    return pending.refusal


def test_a_dialect_that_is_off_is_refused_with_its_switch() -> None:
    """Whatever the value; and the same pod is accepted once the dialect is on."""
    off = f"{KEY}: must be absent, as the dialect toy is off; set dialects.toy.enabled to true"
    for eighths in ("1", "9"):
        assert refusal(asking(eighths=eighths), frozenset({"koordinator"})) == off
    assert requests.pending(asking(), ON).request is not None
    assert refusal(asking(), frozenset({"koordinator"})) == off
    assert refusal(asking(eighths="9"), ON) == f"{KEY}: invalid value 9: must be 1 to 3"


def test_two_dialects_in_one_pod_are_refused_naming_both_keys() -> None:
    both = calls.pod("u-1", objects.container("main", ratio=50), annotations={EIGHTHS: "1"})
    assert refusal(both, ON) == (
        f"{KEY}: must be absent in a pod with container main: {names.RESOURCE_MEMORY_RATIO}, as a"
        " pod requests shares of GPUs in one dialect; remove one of them"
    )


def test_a_bound_pod_may_use_any_dialect() -> None:
    assert requests.requested(asking()) is not None


def test_whole_gpus_of_a_device_plugin_are_in_no_dialect_that_is_off() -> None:
    whole = objects.container("main")
    whole["resources"] = {"limits": {names.RESOURCE_NVIDIA_GPU: "1"}}
    pending = requests.pending(calls.pod("u-1", whole), ON)
    assert (pending.request, pending.refusal) == (None, "")


HINT = names.ANNOTATION_ALLOCATE_HINT
ALL = frozenset(each.name for each in DIALECTS)


def written(scheduler: str, asked: dict[str, str], **annotations: str) -> dict[str, Any]:
    main = {"name": "main", "resources": {"limits": asked, "requests": asked}}
    return {
        "metadata": {"annotations": annotations},
        "spec": {"schedulerName": scheduler, "containers": [main]},
    }


OF_EACH = {
    "koordinator": written("gpuslice-scheduler", {names.RESOURCE_MEMORY_RATIO: "50"}),
    "kai": written("kai-scheduler", {}, **{"gpu-fraction": "0.5"}),
    "volcano": written("volcano", {"volcano.sh/vgpu-number": "1"}),
    "hami": written("gpuslice-scheduler", {"nvidia.com/gpumem": "3000"}),
}


def annotated(dialect: str, key: str, value: str) -> requests.Pending:
    raw = json.loads(json.dumps(OF_EACH[dialect]))
    raw["metadata"]["annotations"][key] = value
    return requests.pending(raw, ALL)


@pytest.mark.parametrize("dialect", OF_EACH)
def test_our_own_policy_is_read_in_every_dialect(dialect: str) -> None:
    found = annotated(dialect, names.ANNOTATION_POLICY, "spread").request
    assert found is not None and found.policy is Policy.SPREAD
    assert annotated(dialect, names.ANNOTATION_POLICY, "Spread").refusal == (
        "metadata.annotations[gpuslice.io/policy]: invalid value 'Spread': must be one of binpack,"
        " spread"
    )


def test_the_dialects_own_policy_precedes_ours_with_a_notice() -> None:
    raw = written("volcano", {"volcano.sh/gpu-memory": "1"}, **{names.ANNOTATION_POLICY: "spread"})
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
        ("hami", HINT, "koordinator"),
        ("volcano", "nvidia.com/nouse-gpuuuid", "hami"),
    ],
)
def test_a_hint_of_another_dialect_is_reported(dialect: str, key: str, of: str) -> None:
    found = annotated(dialect, key, "x")
    assert found.refusal == "" and list(found.notices) == [
        f"metadata.annotations[{key}] has no effect: only the dialect {of} reads it, and the pod"
        f" requests shares in the dialect {dialect}"
    ]


def test_words_of_kai_are_not_hints_under_another_scheduler() -> None:
    assert annotated("koordinator", "mps", "true").notices == []
