"""ResourceClaims on a real kubelet: the node moves there and back, and no order of events and kills
gives more of a GPU than it has.

The tests run in the order of the file, on one cluster with two GPUs. The pods are scheduled by
kube-scheduler as it comes.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from gpuslice.contract import names
from lab.cluster.product import AGENT
from lab.cluster.running import NODE
from nri_plugin.claims import slices
from nri_plugin.policy.model import Gpu
from nri_plugin.policy.totals import Entry
from tests.e2e import claims
from tests.e2e.claims import GIB, Json, container, create, pod, request
from tests.e2e.inside import limit_bytes, logs, sees_no_gpu
from tests.e2e.node import ask_gpus
from tests.e2e.whole import HALF, Whole, allocatable, running
from tests.support import until

pytestmark = pytest.mark.e2e

_MIB: Final = 23040
_ROUNDS: Final = int(os.environ.get("GPUSLICE_CLAIM_ROUNDS", "20"))
_LATE_S: Final = 200.0
"""The kubelet repeats a failed call after about a minute."""


@pytest.fixture(scope="module")
def whole(build_dir: Path) -> Iterator[Whole]:
    assert build_dir.is_dir()
    with running(f"2x{_MIB}Mi") as cluster:
        yield cluster


@pytest.fixture
def watched(whole: Whole) -> Iterator[Whole]:
    """The cluster. Claims that are prepared at the same time never have more than a GPU."""
    most, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            most[0] = max(most[0], *claims.prepared_bytes(whole).values(), 0)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield whole
    finally:
        ended.set()
        thread.join()
    assert most[0] <= _MIB << 20


@contextmanager
def _gone_after(whole: Whole) -> Iterator[None]:
    """Delete all pods and claims after the block, and wait until nothing is prepared."""
    yield
    for kind in ("pods", "resourceclaims", "resourceclaimtemplates"):
        whole.kubectl("delete", kind, "--all", "--wait=false")
    until(lambda: not claims.records(whole), "all claims are unprepared", _LATE_S)
    until(lambda: not whole.kubectl("get", "pods", "--output=name"), "all pods are gone")


def test_a_node_moves_to_claims_after_its_pods_have_gone(whole: Whole) -> None:
    whole.run_pod("half", HALF)
    claims.move(whole, names.FRONT_END_CLAIMS)
    until(lambda: "default/half" in claims.readiness(whole), "/readyz names the pod")
    reason = f"--field-selector=reason={names.EVENT_FRONT_END_WAITS}"
    until(lambda: "half" in whole.kubectl("get", "events", "-A", reason), "an event says it too")
    assert whole.answers("half")
    assert not claims.slice_devices(whole)
    whole.make_pod("late", HALF)
    until(lambda: "FailedScheduling" in whole.events("late"), "nothing new is placed there")
    whole.kubectl("delete", "pod", "half")
    claims.serves_claims(whole)
    assert len(claims.slice_devices(whole)) == 2
    until(lambda: allocatable(whole, names.RESOURCE_GPU) in ("", "0"), "the totals are gone")
    assert "nodeName" not in whole.pod("late")["spec"]
    whole.kubectl("delete", "pod", "late")


def test_each_container_gets_what_it_asks(watched: Whole) -> None:
    whole = watched
    with _gone_after(whole):
        create(
            whole,
            claims.template("ten", request("gpu", "10Gi", 30)),
            claims.template("two", request("a", "4Gi", 20), request("b", "6Gi", 30)),
            pod("ten", "ten"),
            pod(
                "split",
                "two",
                container("one", "a"),
                container("other", "b"),
                container("none", env=[{"name": names.ENV_VISIBLE_DEVICES, "value": "all"}]),
                initContainers=[
                    container("init", "b", script="cuda-probe"),
                    container("side", "a", restartPolicy="Always"),
                ],
            ),
        )
        whole.ready("ten")
        whole.ready("split")
        assert limit_bytes(whole, "ten") == 10 * GIB
        assert "30" in whole.inside("ten", f"echo ${names.ENV_CORE_LIMIT}")
        assert json.loads(logs(whole, "split", "init"))["total"] == 6 * GIB
        for name, gib in (("one", 4), ("other", 6), ("side", 4)):
            said = whole.kubectl("exec", "split", f"--container={name}", "--", "cuda-probe")
            probed = json.loads(said)
            assert (probed["total"], probed["filled"], probed["more"]) == (gib * GIB, 0, 2), name
        assert sees_no_gpu(whole, "split", "none")


def test_two_pods_of_a_named_claim_have_it_together(watched: Whole) -> None:
    whole = watched
    with _gone_after(whole):
        create(whole, claims.claim("named", request("gpu", "5Gi", 10)))
        for name in ("first", "second"):  # the kubelet prepares the claim for the first one only
            create(whole, pod(name, "named", named=True))
            whole.ready(name)
        whole.inside("first", claims.HOLD)
        probed = json.loads(whole.inside("second", "cuda-probe"))
        assert probed["context"] == 2, "the first pod has left no memory for a context"
        gpus = ask_gpus(claims.lab(whole), {"op": "status"})["gpus"]
        assert sum(each["used_bytes"] for each in gpus) <= 5 * GIB
        whole.kubectl("delete", "pod", "first")
        assert len(claims.records(whole)) == 1, "the second pod has it still"
        freed = "the first pod's memory is free"
        until(lambda: json.loads(whole.inside("second", "cuda-probe"))["context"] == 0, freed)
        assert limit_bytes(whole, "second") == 5 * GIB


def test_forged_names_and_annotations_give_nothing(watched: Whole) -> None:
    whole = watched
    with _gone_after(whole):
        create(whole, claims.template("t", request("gpu", "10Gi", 30)), pod("owner", "t"))
        whole.ready("owner")
        (record,) = claims.records(whole)
        share = record["shares"][0]["name"]
        thief = pod(
            "thief",
            "",
            container("main", env=[{"name": names.ENV_VISIBLE_DEVICES, "value": "all"}]),
        )
        device = f"{names.CDI_KIND_CLAIM}={share}"
        thief["metadata"]["annotations"] = {"cdi.k8s.io/gpuslice": device}
        create(whole, thief)
        whole.ready("thief")
        assert sees_no_gpu(whole, "thief", "main")


def test_a_successor_waits_for_a_pod_that_was_deleted_by_force(watched: Whole) -> None:
    whole = watched
    with _gone_after(whole):
        stubborn = container("main", all_of=True, script="trap '' TERM; while :; do sleep 1; done")
        create(whole, claims.template("all", request("gpu", f"{_MIB}Mi", 100)))
        for name in ("old", "beside"):
            create(whole, pod(name, "all", stubborn, terminationGracePeriodSeconds=5))
            whole.ready(name)
        create(whole, pod("next", "all"))
        until(lambda: "FailedScheduling" in whole.events("next"), "the next pod waits")
        whole.kubectl("delete", "pod", "old", "--force", "--grace-period=0")
        until(lambda: whole.answers("next"), "the next pod runs", _LATE_S)
        assert limit_bytes(whole, "next") == _MIB << 20


def test_nothing_is_prepared_while_the_agent_has_no_session(watched: Whole) -> None:
    """The slice is tainted meanwhile. The pod tolerates that, so that its claim is allocated."""
    whole = watched
    socket = whole.root / "run/nri/nri.sock"
    away, before = socket.with_name("away.sock"), whole.pid(AGENT)
    tolerations = [{"key": names.TAINT_NOT_READY, "operator": "Exists"}]
    with _gone_after(whole):
        create(whole, claims.template("t", request("gpu", "2Gi", 10, tolerations=tolerations)))
        socket.rename(away)
        try:
            whole.kill(before)
            whole.until_back(AGENT, before)
            create(whole, pod("early", "t"))
            refusal = "claims are not served on this node now: "
            until(lambda: refusal in whole.events("early"), "an event says why it waits", _LATE_S)
            assert not claims.records(whole)
            assert whole.pod("early")["status"]["phase"] == "Pending"
        finally:
            away.rename(socket)
        until(lambda: whole.answers("early"), "it runs", _LATE_S)
        assert limit_bytes(whole, "early") == 2 * GIB


@pytest.mark.parametrize("part", ["kubelet", AGENT, "containerd"])
def test_a_component_that_restarts_ends_no_pod(whole: Whole, part: str) -> None:
    """The agent's restart is that of an upgrade. A restarted kubelet deletes the slice."""
    with _gone_after(whole):
        create(whole, claims.template("most", request("gpu", "20Gi", 90)))
        for name in ("a", "b"):
            create(whole, pod(name, "most"))
            whole.ready(name)
        before = claims.prepared_bytes(whole)
        whole.restart(part)
        claims.serves_claims(whole)
        until(lambda: whole.answers("a") and whole.answers("b"), "the pods run")
        assert (whole.restarts("a"), whole.restarts("b")) == (0, 0)
        assert claims.prepared_bytes(whole) == before
        create(whole, pod("c", "most"))
        until(lambda: "FailedScheduling" in whole.events("c"), "no GPU has room")
        whole.kubectl("delete", "pod", "a")
        until(lambda: whole.answers("c"), "the waiting pod runs", _LATE_S)
        assert limit_bytes(whole, "c") == 20 * GIB


@pytest.mark.timeout(60 + 60 * _ROUNDS)
@pytest.mark.parametrize("part", ["kubelet", AGENT, "containerd"])
def test_kills_while_claims_are_prepared(watched: Whole, part: str) -> None:
    """The part is killed at a random time in the preparation of a pod, round after round."""
    whole, chance = watched, random.Random(part)
    with _gone_after(whole):
        create(whole, claims.template("half", request("gpu", "11Gi", 50)))
        for number in range(_ROUNDS):
            names_of = [f"r{number}-{each}" for each in "ab"]
            create(whole, *(pod(name, "half") for name in names_of))
            time.sleep(chance.uniform(0.0, 2.5))
            whole.restart(part)
            for name in names_of:
                until(partial(whole.answers, name), f"{name} runs", _LATE_S)
                assert limit_bytes(whole, name) == 11 * GIB
            whole.kubectl("delete", "pod", *names_of, "--wait=false")
            until(lambda: not claims.records(whole), "both are unprepared", _LATE_S)


def test_32_of_33_quarters_fit_on_eight_gpus(whole: Whole) -> None:
    """Only scheduling: the node has no kubelet."""
    size = 80 * GIB
    gpus = [Gpu(f"GPU-{minor}", minor, size) for minor in range(8)]
    entries = [Entry(gpu, healthy=True) for gpu in gpus]
    there = {"cpu": "64", "memory": "512Gi", "pods": "250"}
    ready = {"type": "Ready", "status": "True", "reason": "x", "lastHeartbeatTime": None}
    create(
        whole,
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "eight", "labels": {"kubernetes.io/hostname": "eight"}},
            "status": {"allocatable": there, "capacity": there, "conditions": [ready]},
        },
        claims.template("quarter", request("gpu", "20Gi", 25)),
    )
    uid = json.loads(whole.kubectl("get", "node", "eight", "-o=json"))["metadata"]["uid"]
    create(whole, dict(slices.resource_slice("eight", uid, entries, {}, ready=True)))
    placed: Json = {
        "nodeSelector": {"kubernetes.io/hostname": "eight"},
        "tolerations": [{"operator": "Exists"}],
    }
    create(whole, *(pod(f"q{number}", "quarter", **placed) for number in range(33)))

    def bound() -> int:
        pods = json.loads(whole.kubectl("get", "pods", "-o=json"))["items"]
        return sum(each["spec"].get("nodeName") == "eight" for each in pods)

    until(lambda: bound() == 32, "32 pods are bound", _LATE_S)
    time.sleep(2.0)
    assert bound() == 32
    whole.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
    whole.kubectl("delete", "node", "eight")
    whole.kubectl("delete", "resourceclaimtemplates", "--all")


@pytest.mark.parametrize(("action", "runs"), [("drain-and-reset", True), ("reset", False)])
def test_a_gpu_that_needs_recovery_is_tainted(whole: Whole, action: str, runs: bool) -> None:
    with _gone_after(whole):
        create(whole, claims.template("t", request("gpu", "2Gi", 10)), pod("p", "t"))
        whole.ready("p")
        (device,) = claims.prepared_bytes(whole)
        minor = int(device[-1])
        ask = {"op": "recovery", "gpu": minor, "action": action}
        assert "error" not in ask_gpus(claims.lab(whole), ask)

        def taints() -> list[str]:
            (of,) = (each for each in claims.slice_devices(whole) if each["name"] == device)
            return [taint["effect"] for taint in of.get("taints", ())]

        until(lambda: taints() == ["NoSchedule" if runs else "NoExecute"], "it is tainted")
        if runs:
            assert whole.answers("p")
        else:
            gone = "it is evicted"
            until(lambda: whole.try_kubectl("get", "pod", "p").returncode != 0, gone)
        ask_gpus(claims.lab(whole), {**ask, "action": "none"})
        until(lambda: not taints(), "it takes shares again")


def test_a_node_moves_back_after_its_claims_have_gone(whole: Whole) -> None:
    create(whole, claims.template("t", request("gpu", "10Gi", 30)), pod("held", "t"))
    whole.ready("held")
    claims.move(whole, names.FRONT_END_ANNOTATIONS)
    until(lambda: not claims.slice_devices(whole), "the slice is withdrawn")
    until(lambda: "claim default/held" in claims.readiness(whole), "/readyz names the claim")
    assert limit_bytes(whole, "held") == 10 * GIB
    assert allocatable(whole, names.RESOURCE_GPU) in ("", "0")
    whole.kubectl("delete", "pod", "held")
    until(lambda: allocatable(whole, names.RESOURCE_GPU) == "200", "the totals are back", _LATE_S)
    whole.run_pod("half", HALF)
    assert whole.gpu("half", "memory.total") == str(_MIB // 2)
    assert whole.pod("half")["spec"]["nodeName"] == NODE
    whole.kubectl("delete", "pod", "half")


def test_no_gpu_is_held_by_both_while_pods_come_and_go(whole: Whole) -> None:
    """The node moves there and back. Meanwhile pods of both kinds are created and deleted."""
    create(whole, claims.template("c", request("gpu", "5Gi", 20)))
    ended, holding, both = threading.Event(), {"annotated": 0, "claiming": 0}, []

    def come_and_go(kind: str) -> None:
        number = 0
        while not ended.is_set():
            number, name = number + 1, f"{kind}-{number}"
            if kind == "annotated":
                whole.make_pod(name, HALF)
            else:
                create(whole, pod(name, "c"))
            ended.wait(4.0)
            whole.try_kubectl("delete", "pod", name, "--wait=false")

    def look() -> None:
        while not ended.is_set():
            before = {record["uid"] for record in claims.records(whole)}
            pods = json.loads(whole.kubectl("get", "pods", "--output=json"))["items"]
            claiming = before & {record["uid"] for record in claims.records(whole)}
            annotated = [
                each["metadata"]["name"]
                for each in pods
                if names.ANNOTATION_DEVICE_ALLOCATED in each["metadata"].get("annotations", {})
                and each["status"]["phase"] == "Running"
            ]
            holding["annotated"] += bool(annotated)
            holding["claiming"] += bool(claiming)
            if annotated and claiming:
                both.append((annotated, claiming))

    def more(kind: str, than: int) -> bool:
        return holding[kind] > than

    works: list[Callable[[], None]] = [look, *(partial(come_and_go, kind) for kind in holding)]
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    try:
        for front_end, kind in (
            (names.FRONT_END_CLAIMS, "claiming"),
            (names.FRONT_END_ANNOTATIONS, "annotated"),
        ) * 2:
            claims.move(whole, front_end)
            until(partial(more, kind, holding[kind] + 3), f"pods are {kind}", _LATE_S)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not both
