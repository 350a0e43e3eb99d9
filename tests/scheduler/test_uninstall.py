"""`python -m scheduler uninstall` against a fake API server, in virtual time."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from gpuslice.contract import names
from gpuslice.kube import access
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.fields import Json, at
from scheduler import uninstall, uninstall_command
from tests import virtual_time
from tests.scheduler import commands
from tests.scheduler.objects import written

AGENT, CORE, SPACE = names.AGENT, names.RESOURCE_CORE, "/namespaces/gpu-system/"
NODES, PODS, SETS = "/api/v1/nodes", f"/api/v1{SPACE}pods", f"/apis/apps/v1{SPACE}daemonsets"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
DEVICES = f"/apis/{names.DEVICE_API_VERSION}/devices"
CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
LEASES = f"/apis/coordination.k8s.io/v1{SPACE}leases"
TOTAL, ON_N1 = (f"status capacity {CORE}", "100", AGENT), ("spec nodeName", "n1", "")
Field = tuple[str, object, str]


def of(component: str) -> Field:
    labels = {names.LABEL_PART_OF: names.PART_OF, names.LABEL_NAME: component}
    return "metadata labels", labels, ""


def ready(status: str) -> Field:
    conditions = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": status}]
    return "status conditions", conditions if status else conditions[:1], ""


class Api(Kube):
    """A client of a fake server. The namespace's pods exist until pods_end_s. refusals: the
    statuses of the next answers, by request. writes: the changes, with their times."""

    pods_end_s = 999.0

    def __init__(self) -> None:
        super().__init__(access.Access("http://127.0.0.1:1"))
        self.objects: dict[str, Json] = {}
        self.refusals: dict[str, list[int]] = {}
        self.writes: list[tuple[float, str, Json]] = []

    def add(self, path: str, *fields: Field) -> None:
        self.objects[path] = written(path.rpartition("/")[2], *fields)

    async def _answer(self, method: str, path: str, query: Any, body: Any = "", **_: Any) -> bytes:
        request = f"{method} {path}"
        if refusals := self.refusals.get(request):
            raise KubeError(refusals.pop(0), "Refused", request)
        if body:
            self.writes.append((virtual_time.now(), request, body))
            return b"{}"
        if path.endswith("/log"):
            return f"first line of {path}\nsecond line".encode()
        if found := self.objects.get(path):
            metadata = {**found["metadata"], "resourceVersion": "8"}
            return orjson.dumps({**found, "metadata": metadata})
        key, *values = re.findall(r"[\w./-]+", query["labelSelector"]) or ("", None)
        kind = re.compile(path.replace("/v1/pods", "/v1/.*pods") + "/[^/]+")
        there = [raw for place, raw in self.objects.items() if kind.fullmatch(place)]
        if path == PODS and virtual_time.now() >= self.pods_end_s:
            there = []
        listed = [raw for raw in there if at(raw["metadata"], "labels").get(key) in values]
        return orjson.dumps({"items": listed})


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    def run(main: Any) -> None:
        with asyncio.Runner(loop_factory=virtual_time.Loop) as runner:
            runner.run(main)

    made = Api()
    monkeypatch.setattr(access, "load", lambda _: None)
    monkeypatch.setattr(uninstall_command, "asyncio", SimpleNamespace(run=run))
    monkeypatch.setattr(uninstall_command, "Kube", lambda *_, **__: made)
    monkeypatch.setattr(uninstall, "time", SimpleNamespace(monotonic=virtual_time.now))
    return made


def run(*flags: str) -> commands.Done:
    return commands.run("uninstall", "--namespace=gpu-system", *flags)


def test_what_the_components_wrote_is_removed_in_order_and_the_rest_is_reported(api: Api) -> None:
    api.add(f"{POLICIES}/requests", of("x"))
    api.add(f"{POLICIES.removesuffix('ies')}ybindings/requests", of("x"))
    api.add(f"{POLICIES}/gpuslice-writer", of("x"))
    api.add(f"{POLICIES}/foreign")
    api.add(f"{SETS}/{AGENT}", of(AGENT))
    api.add(f"{SETS}/other", of("x"))
    api.add(f"{NODES}/n1", TOTAL, *((f"metadata labels {key}", "", AGENT) for key in "ab"))
    api.add(f"{NODES}/n2", (TOTAL[0], "100", "koord-manager"))
    api.add(f"{DEVICES}/n1", ("spec devices", [{"type": "gpu"}], AGENT))
    api.add(f"{DEVICES}/n2", ("spec devices", [{"type": "gpu"}], "koordlet"))
    api.add(f"{DEVICES}/n3", ("spec devices", [{"type": "gpu"}, {"type": "rdma"}], AGENT))
    for lease in ("agent-n1", names.LEASE_KUBE_SCHEDULER, "other"):
        api.add(f"{LEASES}/{lease}")
    grant = (f"metadata annotations {names.ANNOTATION_GRANTS}", "{}", "")
    api.add("/api/v1/namespaces/team/pods/share", ("metadata namespace", "team", ""), grant, ON_N1)
    api.add("/api/v1/namespaces/team/pods/other", ON_N1)
    changes = [
        "validatingadmissionpolicybinding/requests: deleted",
        "validatingadmissionpolicy/requests: deleted",
        f"daemonset/{AGENT}: deleted",
        f"node/n1: {CORE} removed",
        "node/n1: a, b removed",
        "device/n1: deleted",
        "device/n3: gpu removed",
        "lease/agent-n1: deleted",
        f"lease/{names.LEASE_KUBE_SCHEDULER}: deleted",
    ]
    stays = [
        f"stays: node/n2: {CORE}: no agent wrote it",
        "stays: device/n2: another program than the agent wrote it",
        "stays: pod team/share on node n1: it has a share of a GPU, and keeps its limit until it"
        " ends",
    ]
    tried, done = run("--dry-run"), run()
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:-3] == changes + stays
    assert tried.stdout.splitlines()[:-3] == [f"{line} (dry run)" for line in changes] + stays
    assert len(api.writes) == len(changes), "the dry run writes nothing"
    for _, request, body in api.writes:
        if request.startswith("DELETE"):
            policy = "Foreground" if SETS in request else "Background"
            uid = f"uid-{request.rpartition('/')[2]}"
            assert body == {"propagationPolicy": policy, "preconditions": {"uid": uid}}


@pytest.mark.parametrize("driver", [names.DRA_DRIVER, "other"])
def test_nothing_is_removed_while_pods_have_claims(api: Api, driver: str) -> None:
    """Without the agent the kubelet cannot unprepare their claims, and they would not end."""
    api.add(f"{SETS}/{AGENT}", of(AGENT))
    results = ("status allocation devices results", [{"driver": driver}], "")
    for number in (1, 2):
        users = ("status reservedFor", [{"resource": "pods", "name": f"user-{number}"}], "")
        api.add(f"{CLAIMS}/{number}", ("metadata namespace", "team", ""), results, users)
    api.add(f"{CLAIMS}/waits", ("metadata namespace", "team", ""))
    done, is_ours = run(), driver == names.DRA_DRIVER
    refusal = "uninstall: pods have claims of GPUs: team/user-1, team/user-2: must have ended,"
    assert done.stderr.startswith(refusal) is is_ours
    assert (done.exit_code, bool(api.writes)) == (is_ours, not is_ours)


@pytest.mark.parametrize(
    ("node", "end_s", "patched_s"),
    [("True", 2.5, [3]), ("True", 999, []), ("", 999, []), ("Unknown", 999, [0])],
)
def test_the_end_of_the_components_pods_is_awaited_unless_their_node_is_lost(
    api: Api, node: str, end_s: float, patched_s: list[int]
) -> None:
    api.pods_end_s = end_s
    api.add(f"{NODES}/n1", TOTAL, ready(node))
    for component in (AGENT, "other"):
        api.add(f"{PODS}/{component}-1", of(component), ON_N1)
    done = run()
    assert ([at_s for at_s, *_ in api.writes], done.exit_code) == (patched_s, not patched_s)
    refusal = f"uninstall: pods still run after 120 s: {AGENT}-1 on node n1: must have ended,"
    assert done.stderr.startswith(refusal) is (not patched_s)
    assert (f"{AGENT}-1: its node n1 is not ready" in done.stdout) is (node == "Unknown")


@pytest.mark.parametrize(
    ("refused", "statuses", "patched", "error"),
    [
        (f"DELETE {POLICIES}/requests", [404], ["7"], ""),
        (f"DELETE {POLICIES}/requests", [409], ["7"], ""),
        (f"DELETE {POLICIES}/requests", [403], [], "Refused"),
        (f"PATCH {NODES}/n1/status", [404], [], ""),
        (f"PATCH {NODES}/n1/status", [409], ["8"], ""),
        (f"PATCH {NODES}/n1/status", [409] * 99, [], "node/n1: changes faster than it"),
        (f"PATCH {NODES}/n1/status", [500], [], "Refused"),
        (f"GET {CLAIMS}", [404], ["7"], ""),
        (f"GET {CLAIMS}", [403], [], "Refused"),
        (f"GET {DEVICES}", [404], ["7"], ""),
        (f"GET {DEVICES}", [403], ["7"], "Refused"),
    ],
)
def test_a_refusal_ends_the_command_unless_the_object_is_gone_or_new(
    api: Api, refused: str, statuses: list[int], patched: list[str], error: str
) -> None:
    api.add(f"{POLICIES}/requests", of("x"))
    api.add(f"{NODES}/n1", TOTAL)
    api.refusals[refused] = statuses
    done = run()
    versions = [to["metadata"]["resourceVersion"] for *_, to in api.writes if "metadata" in to]
    assert (versions, done.exit_code) == (patched, bool(error)) and error in done.stderr
    assert (f"node/n1: {CORE} removed" in done.stdout) is bool(patched)


@pytest.mark.parametrize(("seen", "count", "by_s"), [(2, 3, 0), (1, 3, 3), (2, 2, 3)])
def test_the_nodes_logs_are_printed_once_all_are_cleaned_or_the_time_is_over(
    api: Api, seen: int, count: int, by_s: int
) -> None:
    status = {"observedGeneration": seen, "numberReady": count, "desiredNumberScheduled": 3}
    ours, generation = of(names.UNINSTALLER), ("metadata generation", 2, "")
    api.add(f"{SETS}/{names.UNINSTALLER}", ours, generation, ("status", status, ""))
    for node, condition in (("n1", "True"), ("n2", "False"), ("n3", "")):
        api.add(f"{PODS}/of-{node}", ours, ready(condition), ("spec nodeName", node, ""))
    done = run("--nodes", "--timeout=3")
    assert done.exit_code == 0 and done.stdout.splitlines() == [
        f"node/n1: first line of {PODS}/of-n1/log",
        "node/n1: second line",
        "node/n2: not reached: its files stay",
        "node/n3: not reached: its files stay",
        f"daemonset/{names.UNINSTALLER}: deleted",
    ]
    ((at_s, *_),) = api.writes
    assert by_s <= at_s <= by_s + 1
