"""The API server writes what a share counts in a queue, as the readers of the dialects read it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Final

import pytest
import yaml

from gpuslice.contract import names
from gpuslice.contract.dialects import HAMI_MEMORY
from lab.cluster.controlplane import ControlPlane
from lab.cluster.manifests import KOORDINATOR, STOCK
from scheduler.dialects.reading import RequestError
from tests.cluster.admission.counting import (
    SIZES,
    counted,
    counting,
    missing,
    queues,
    set_sizes,
    with_counts,
    written,
)
from tests.cluster.admission.judging import DRY, MUTATES, PODS, SWITCHES, all_dialects, tried
from tests.cluster.admission.random_pods import RANDOM, any_of_koordinator
from tests.cluster.server import Json, Server
from tests.requests.koordinator_rows import CORE, MEM, RATIO, SHARED, G
from tests.requests.pods import HALF, asking, container, of_kai, pod, unnamed, workloads
from tests.requests.row import Row, identity
from tests.requests.rows import FIRST, GPU, GRANTED
from tests.support import ROOT, until

pytestmark = pytest.mark.cluster

KAI, RUNAI, KUEUE = names.LABEL_KAI_QUEUE, names.LABEL_RUNAI_QUEUE, names.LABEL_KUEUE_QUEUE
MILLI: Final = names.RESOURCE_MILLI
WRITTEN: Final = f"resources.limits[{MILLI}]"
_SEEDED: Final = 40
_FRACTIONS: Final = (
    *(("0.1", "100"), ("0.2", "200"), ("0.3", "300"), ("0.29", "290"), ("0.57", "570")),
    *(("0.333", "333"), ("0.005", "5"), ("0.0005", "1"), ("0.0004", "0")),
)
_SIZES_TEXT: Final = ",".join(map(str, SIZES))


@pytest.fixture(scope="module", autouse=True)
def on(installed: ControlPlane, server: Server) -> Iterator[None]:
    """Turn all dialects and queues on."""

    def in_force() -> bool:
        return (
            all(tried(server, row.pod).policy == policy for policy, row in FIRST.items())
            and written(counting(server, pod(asking(HALF)))) == {"main": "500"}
            and counting(server, unnamed(asking({GPU: 1}))).done
        )

    every = (MUTATES, *SWITCHES)
    with all_dialects(installed), queues(installed, server, *every):
        set_sizes(server, _SIZES_TEXT, "45")
        until(in_force, "each policy is in force")
        yield


# --- the count


@pytest.mark.parametrize("row", GRANTED, ids=identity)
def test_each_request_of_the_table_is_counted(server: Server, row: Row) -> None:
    assert written(counting(server, row.pod)) == counted(row.pod)


def _any_share(chance: random.Random) -> Json:
    """Return a pod of Koordinator's dialect that is valid more often than those of RANDOM."""
    gpus = chance.choice((1, 1, 2, 3, 16))
    asked = {SHARED: gpus} if gpus > 1 else {}
    memory = {MEM: gpus * (chance.randint(128, 100_000) << 20) + chance.randint(0, 9)}
    asked |= chance.choice(({RATIO: gpus * chance.randint(1, 100)}, memory))
    asked |= chance.choice(({}, {CORE: gpus * chance.randint(1, 100)}))
    return pod(asking(asked))


def _any_of_kai(chance: random.Random) -> Json:
    fraction = f"{chance.random():.{chance.randint(1, 9)}f}"
    memory = str(chance.randint(128, 100_000))
    asked = chance.choice(
        (
            {"gpu-fraction": fraction},
            {"gpu-memory": memory},
            {"nvidia.com/container.second.gpu-memory.limit": f"{memory}Mi"},
        )
    )
    devices = chance.choice(({}, {"gpu-fraction-num-devices": str(chance.randint(1, 16))}))
    return of_kai({**asked, **devices})


@pytest.mark.parametrize(
    "make",
    [*RANDOM.values(), any_of_koordinator, _any_share, _any_of_kai],
    ids=lambda f: f.__name__,
)
def test_a_random_request_is_counted_as_the_scheduler_reads_it(
    server: Server, make: Callable[[random.Random], Json]
) -> None:
    chance, seen = random.Random(7), 0
    for _ in range(_SEEDED):
        raw = make(chance)
        answer = counting(server, raw)
        try:
            right = counted(raw)
        except RequestError:
            assert (answer.done, answer.policy == "gpuslice-queues") == (False, False), answer.text
            continue
        assert written(answer) == right, raw
        seen += 1
    assert seen > _SEEDED // 10


@pytest.mark.parametrize(
    ("annotations", "count"),
    [
        *(({"gpu-fraction": text}, count) for text, count in _FRACTIONS),
        ({"gpu-memory": "2000"}, "87"),
        ({"gpu-memory": "23040"}, "1k"),
        ({"gpu-memory": "23041"}, "563"),
        ({"gpu-memory": "81560", "gpu-fraction-num-devices": "2"}, "2k"),
    ],
)
def test_a_pod_of_kai_counts(server: Server, annotations: dict[str, str], count: str) -> None:
    """Sums of tenths fit where they should. Memory is of the smallest model that can hold it."""
    assert written(counting(server, of_kai(annotations))) == {"main": count}


def test_a_resource_quota_counts_fractions_exactly(server: Server) -> None:
    hard, none = ({f"requests.{MILLI}": amount} for amount in ("300", "0"))
    space = "/api/v1/namespaces/counted"
    quota = {"metadata": {"name": "q"}, "spec": {"hard": hard}}
    tenth, fifth = of_kai({"gpu-fraction": "0.1"}), of_kai({"gpu-fraction": "0.2"})
    fifth["metadata"]["name"] = "fifth"
    with server.made(f"{space}/resourcequotas", quota) as path:
        assert server.patch(f"{path}/status", {"status": {"hard": hard, "used": none}}).done
        half = of_kai({"gpu-fraction": "0.5"})
        until(lambda: "exceeded quota" in counting(server, half).text, "the quota is in force")
        with server.made(f"{space}/pods", tenth), server.made(f"{space}/pods", fifth):
            least = of_kai({"gpu-fraction": "0.001"})
            until(lambda: f"used: requests.{MILLI}=300," in counting(server, least).text, "both")
    until(lambda: counting(server, half).done, "the quota is gone")


@pytest.mark.parametrize("text", ["", "none", "1024", " 512 , 1024"])
def test_memory_counts_a_whole_gpu_where_no_known_model_can_hold_it(
    server: Server, text: str
) -> None:
    try:
        set_sizes(server, text, "1k")
        raw = of_kai({"gpu-memory": "2000", "gpu-fraction-num-devices": "3"})
        assert written(counting(server, raw)) == {"main": "3k"}
        assert written(counting(server, of_kai({"gpu-fraction": "0.1"}))) == {"main": "100"}
    finally:
        set_sizes(server, _SIZES_TEXT, "45")


def test_the_pods_of_other_systems_documents_are_counted(server: Server) -> None:
    files = sorted((ROOT / "docs/examples").glob("*/*.yaml"))
    every = [each for file in files for each in yaml.safe_load_all(file.read_text())]
    raws = [each for each in every if each and each["kind"] == "Pod"]
    raws = [raw for raw in raws if raw["spec"].get("schedulerName") != KOORDINATOR]  # not served
    for raw in raws:
        raw["metadata"].pop("namespace", None)
        answer = counting(server, raw)
        assert written(answer) == counted(raw) != {}
    assert [raw["metadata"]["name"] for raw in raws].count("gpu-pod") == 2
    labels = counting(server, next(raw for raw in raws if "labels" in raw["metadata"])).body
    assert labels["metadata"]["labels"] == {KAI: "test", KUEUE: "test"}


# --- where it is written


def _same(server: Server, raw: Json) -> bool:
    """Return whether the pod is the same in a namespace with and without the label."""
    bodies = [counting(server, raw).body, tried(server, raw).body]
    for body in bodies:
        for key in ("uid", "creationTimestamp", "namespace", "managedFields"):
            body["metadata"].pop(key)
    return bodies[0] == bodies[1]


def test_a_pod_without_a_share_is_not_changed(server: Server) -> None:
    limited = container(resources={"limits": {"cpu": "1"}})
    for raw in (
        pod(container(), labels={KAI: "test"}),
        pod(deepcopy(limited), container("first", init=True), labels={RUNAI: "test", "a": "b"}),
        pod(limited, scheduler=STOCK, labels={KAI: "test"}),
        of_kai({}),
    ):
        assert _same(server, raw)


def test_pods_that_gpuslice_does_not_serve_are_not_changed(server: Server) -> None:
    ignored = {"hami.io/webhook": "ignore"}
    for raw in (
        unnamed(asking({GPU: 1, HAMI_MEMORY: 3000}), labels=ignored),
        pod(asking(HALF), scheduler="other", labels={KAI: "test"}),
    ):
        assert _same(server, raw)


def test_a_job_is_counted_by_its_template_and_other_workloads_by_their_pods(server: Server) -> None:
    raw = pod(asking(HALF), container("second"), labels={KAI: "test"})
    for kind, (path, workload) in workloads(raw).items():
        answer = counting(server, workload, path)
        assert answer.done, answer.text
        if kind == "Job":
            assert written(answer) == {"main": "500"}
            assert answer.body["metadata"]["labels"][KUEUE] == "test"
        else:
            assert MILLI not in str(answer.body) and KUEUE not in str(answer.body)


@pytest.mark.parametrize(
    ("labels", "queue"),
    [
        ({}, None),
        ({KAI: "k", "a": "b"}, "k"),
        ({RUNAI: "r"}, "r"),
        ({RUNAI: "r", KAI: "k"}, "k"),
        ({RUNAI: "r", KAI: ""}, "r"),
        ({KAI: "k", KUEUE: "q"}, "q"),
    ],
)
def test_the_label_of_kai_becomes_that_of_kueue(
    server: Server, labels: dict[str, str], queue: str | None
) -> None:
    metadata = counting(server, pod(asking(HALF), labels=labels)).body["metadata"]
    wanted = labels if queue is None else {**labels, KUEUE: queue}
    assert metadata.get("labels", {}) == wanted


# --- what the author wrote


def test_what_the_author_wrote_is_replaced_by_the_right_count(server: Server) -> None:
    shares = pod(asking(HALF), asking({G: 30}, "second"), container("third"))
    counts = {"main": "499", "second": "0.3k", "third": "5"}
    answer = counting(server, with_counts(shares, counts))
    assert written(answer) == {"main": "500", "second": "300"}
    assert _same(server, with_counts(pod(asking(HALF)), {"main": "500"}))


def test_the_annotations_of_a_pod_that_waits_cannot_change_its_count(server: Server) -> None:
    collection = PODS.replace("/default/", "/counted/")
    with server.made(collection, of_kai({"gpu-fraction": "0.1"})) as path:
        changed = {"metadata": {"annotations": {"gpu-fraction": "0.9"}}}
        answer = server.patch(path, changed)
        assert answer.text.startswith(f"container main: {WRITTEN}: invalid value 100: must be 900")
        assert server.patch(path, {"metadata": {"annotations": {"a": "b"}}}).done
    with server.made(collection, of_kai({})) as path:
        answer = server.patch(path, changed)
        assert answer.text == f"{missing('main', '900')}, from the creation of the object on"


def test_a_suspended_job_cannot_change_its_count(server: Server) -> None:
    """Kueue's own changes are not judged, also if the right count has changed since."""
    path, job = workloads(of_kai({"gpu-memory": "2000"}))["Job"]
    job["spec"]["suspend"] = True
    made = server.make(path.replace("/default/", "/counted/"), job)
    try:
        set_sizes(server, "40960", "25")
        template = {"metadata": {"annotations": {"a": "b"}}}
        started = {"spec": {"template": template, "suspend": False}}
        assert server.patch(f"{made}{DRY}", started).done
        template["metadata"]["annotations"] = {"gpu-memory": "4000"}
        answer = server.patch(f"{made}{DRY}", {"spec": {"template": template}})
        assert answer.text.startswith(f"container main: {WRITTEN}: invalid value 87: must be 98")
    finally:
        server.ask("DELETE", f"{made}?propagationPolicy=Background")
        set_sizes(server, _SIZES_TEXT, "45")
