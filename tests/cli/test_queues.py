"""`gpuslice queues`: the table, JSON, the translation, and a pod's place in its queue."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from gpuslice.cli import connecting, queue_state, queues
from gpuslice.cli.queue_state import LOCAL_QUEUES, Held
from gpuslice.contract import names
from gpuslice.kube import access
from gpuslice.kube.access import Access, AccessError
from scheduler.queues import figures, kueue, status, tree
from scheduler.queues.tree import QUEUES
from tests.kube.api_server import client_of, listed, refuse
from tests.queues.kai import Q
from tests.support import ROOT

Json = dict[str, Any]
SEEDS_QUEUES = ROOT / "tests/dialects/recorded/kai-queues.yaml"
TREE = [
    *(Q("dept", 4, 6), Q("team", 2, parent="dept"), Q("frugal", 1, weight=0, parent="dept")),
    *(Q("big", 20), Q("lost", 1, parent="gone")),
]


def spec(milli: int) -> Json:
    return {"containers": [{"resources": {"requests": {names.RESOURCE_MILLI: str(milli)}}}]}


def work(queue: str, milli: int, uid: str = "", priority: int = 0, at: int = 0) -> Json:
    """Return a Workload of namespace ns. uid: of the pod that waits; "": admitted."""
    owners = [{"uid": uid}] if uid else []
    admitted = [] if uid else [{"type": "Admitted", "status": "True"}]
    return {
        "metadata": {
            **{"namespace": "ns", "name": f"{queue}-{uid}", "ownerReferences": owners},
            "creationTimestamp": f"2026-01-01T00:00:0{at}Z",
        },
        "spec": {
            **{"queueName": queue, "priority": priority},
            "podSets": [{"count": 1, "template": {"spec": spec(milli)}}],
        },
        "status": {
            "conditions": admitted,
            "admission": {
                "podSetAssignments": [{"resourceUsage": {names.RESOURCE_MILLI: str(milli)}}]
            },
        },
    }


def local(name: str, to: str = "") -> Json:
    return {"metadata": {"namespace": "ns", "name": name}, "spec": {"clusterQueue": to or name}}


LOCAL = [local("team"), local("frugal"), local("lost"), local("own", "theirs")]
WORKS = [
    *(work("team", 3000), work("team", 800, "u-2", at=2), work("team", 500, "u-1", at=1)),
    *(work("team", 86, "u-3", priority=5, at=9), work("own", 1000, "u-4")),
]


def raws(*more: Json) -> list[Json]:
    """Return the Queues with the status that the scheduler writes, and more."""
    made = [each.raw() for each in TREE]
    built, works = tree.build(made), [work for raw in WORKS if (work := figures.work(raw))]
    kueue.divide(built, 10_000)
    figures.count(built, works, (), figures.locals_of(LOCAL), {}, {})
    for raw in made:
        raw["status"] = status.status(raw, built[raw["metadata"]["name"]], None, 10_000, "1")
    return [*made, *more]


def place(raw: Json, *more: Json) -> queue_state.Place:
    return queue_state.place(raws(*more), WORKS, LOCAL, raw)


# --- the tree


def test_the_table_shows_the_tree() -> None:
    shown = [*queues.lines(raws())]
    assert shown == [
        "queues: 5; 3 of 10 GPUs used; waiting: 3",
        "queue             quota    share     used   wanted    limit  waiting",
        "big         7.142 of 20        0        0        0        -        0",
        "dept         2.857 of 4    4.386        3    4.386        6        3",
        "  frugal     0.714 of 1        0        0        0    0.714        0",
        "  team       1.428 of 2    4.386        3    4.386        -        3",
        "lost: spec.parentQueue: invalid value gone: must be the name of a Queue",
    ]
    assert "\n".join(shown) in (ROOT / "docs/commands.md").read_text()


def test_a_row_has_what_is_written_and_what_counts() -> None:
    _, row, _, big, lost = queues.rows(raws())
    assert row == {
        **{"name": "team", "parent": "dept", "quota": 2, "guaranteed": 1.428, "share": 4.386},
        **{"used": 3, "wanted": 4.386, "limit": -1, "waiting": 3, "unplaceable": 0},
        **{"cluster": 10, "problem": ""},
    }
    assert (big["quota"], big["guaranteed"]) == (20, 7.142)
    assert lost["name"] == "lost" and lost["problem"].startswith("spec.parentQueue: ")


def test_a_queue_that_the_scheduler_has_not_seen_says_so() -> None:
    *_, line = queues.lines(raws(Q("new").raw()))
    assert line == "new: the scheduler has not served the Queue yet: is queues.enabled true?"


# --- a pod's place


def pod(queue: str, uid: str = "u-9", milli: int = 5000, **of: Any) -> Json:
    gated = {"schedulingGates": [{"name": figures.GATE}]} if of.get("gated", True) else {}
    labels = {names.LABEL_KUEUE_QUEUE: queue, names.LABEL_KAI_QUEUE: queue}
    return {
        "metadata": {"namespace": "ns", "name": "p", "uid": uid, "labels": labels},
        "spec": {**spec(milli), **gated, "nodeName": of.get("node", "")},
    }


INVALID = "metadata.labels[kai.scheduler/queue]: invalid value"
PLACES = {
    Held.QUOTA: (pod("team"), ["waits in queue team and requests 5 GPUs; dept's limit is 6"]),
    Held.UNSERVED: (pod("none"), [f"{INVALID} none: must be the name of a Queue"]),
    Held.STOPPED: (pod("lost"), ["queue lost: spec.parentQueue: invalid value gone: must be"]),
    Held.FOREIGN: (pod("own", "u-4"), ["queue theirs: place 1 of 1"]),
    Held.ADMITTED: (
        pod("team", milli=800, gated=False),
        ["queue team: Kueue admitted the pod, which counts as 0.8 GPUs"],
    ),
}


@pytest.mark.parametrize("held", Held)
def test_each_reason_for_which_a_pod_waits(held: Held) -> None:
    raw, begins = PLACES[held]
    found = place(raw)
    assert found.held is held and found.is_gated is (held is not Held.ADMITTED)
    assert [line[: len(begin)] for line, begin in zip(found.lines, begins, strict=True)] == begins


def test_a_queue_that_is_not_served_now() -> None:
    condition = {"type": figures.READY, "status": "False", "message": "KAI owns it"}
    taken = {**Q("taken").raw(), "status": {"conditions": [condition]}}
    assert place(pod("taken"), taken) == (Held.STOPPED, ["queue taken: KAI owns it"])
    needs = "the scheduler makes it if the namespace has the label gpuslice.io/queues=true"
    assert place(pod("big")) == (Held.STOPPED, [f"no LocalQueue big in ns: {needs}"])


def test_the_place_in_a_queue_is_by_priority_and_then_by_age() -> None:
    lines = [place(pod("team", f"u-{number}")).lines for number in (1, 2, 3, 9)]
    assert [line[1:] for line in lines] == [
        ["queue team: place 2 of 3"],
        ["queue team: place 3 of 3"],
        ["queue team: place 1 of 3"],
        [],
    ]


def test_a_running_pod_of_a_queue_that_borrows() -> None:
    held, lines = place(pod("team", milli=3000, gated=False, node="n"))
    assert held is None and lines == [
        "queue team: Kueue admitted the pod, which counts as 3 GPUs; the queue uses 3 of its quota"
        " of 1.428, so Kueue may delete its pods"
    ]


def test_a_pod_that_ends_has_no_place() -> None:
    raw = pod("team", gated=False, node="n")
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert place(raw) == queue_state.Place()


# --- the commands


def convert(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, list[Json]]:
    status_ = queues.main(["convert", *flags], "gpuslice")
    printed = capsys.readouterr()
    return status_, printed.out or printed.err, [*yaml.safe_load_all(printed.out)]


def test_the_seeds_queues_become_kueues(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, made = convert(capsys, "-f", str(SEEDS_QUEUES), "--gpus=4")
    kinds = [(each["kind"], each["metadata"]["name"]) for each in made]
    assert (code, kinds) == (
        0,
        [
            *(("ResourceFlavor", "gpuslice"), ("Cohort", "gpuslice-root"), ("Cohort", "default")),
            ("ClusterQueue", "test"),
        ],
    )
    assert text.startswith("# For 4 GPUs.") and "# queue" not in text
    # The scheduler deletes its own objects when their Queues are gone.
    assert all(not kueue.LABELS.items() <= each["metadata"]["labels"].items() for each in made)


def test_the_documents_queues_are_converted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/queues.md").read_text(), re.M | re.S)
    (tmp_path / "queues.yaml").write_text(next(each for each in blocks if "kind: Queue" in each))
    code, text, made = convert(capsys, "-f", str(tmp_path / "queues.yaml"), "--gpus=4")
    assert (code, len(made)) == (0, 4) and "# queue" not in text


def test_what_has_no_counterpart_is_a_comment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(
        yaml.safe_dump_all([*raws(Q("short").raw(preemptMinRuntime="1m")), {"kind": "X"}])
    )
    code, text, made = convert(capsys, "-f", str(file), "--gpus=10")
    assert code == 1 and len(made) == 7
    comments = [line for line in text.splitlines() if line.startswith("# queue")]
    assert [(line.split()[2], *line.split(": ")[1:3]) for line in comments] == [
        ("big:", "spec.resources.gpu.quota", "20 does not fit the parent or the cluster"),
        ("dept:", "spec.resources.gpu.quota", "4 does not fit the parent or the cluster"),
        ("frugal:", "spec.resources.gpu.quota", "1 does not fit the parent or the cluster"),
        ("lost:", "not converted", "spec.parentQueue"),
        ("short:", "spec.preemptMinRuntime", "has no effect"),
        ("team:", "spec.resources.gpu.quota", "2 does not fit the parent or the cluster"),
    ]


@pytest.mark.parametrize("gpus", [-3, 0])
def test_the_number_of_gpus_must_be_one_at_least(
    gpus: int, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = convert(capsys, "-f", str(SEEDS_QUEUES), f"--gpus={gpus}")
    expected = f"gpuslice queues: --gpus: invalid value {gpus}: must be at least 1\n"
    assert (code, text) == (2, expected)


def test_the_number_of_gpus_must_be_known(capsys: pytest.CaptureFixture[str]) -> None:
    text = "gpuslice queues: --gpus: must be given: no Queue's status has the number of GPUs\n"
    assert convert(capsys, "-f", str(SEEDS_QUEUES))[:2] == (2, text)


def test_a_file_without_queues_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "none.yaml"
    file.write_text("kind: Pod")
    assert convert(capsys, "-f", str(file), "--gpus=1")[:2] == (
        2,
        "gpuslice queues: no Queue of scheduling.run.ai/v2 found\n",
    )


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["-n", "ns"], "unrecognized arguments: -n ns"),
        (["--context=z", "--kubeconfig=k"], "gpuslice queues: k z\n"),
    ],
)
def test_the_flags_select_a_context_and_no_namespace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], text: str
) -> None:
    def load(kubeconfig: str, context: str) -> Access:
        raise AccessError(f"{kubeconfig} {context}")

    monkeypatch.setattr(access, "load", load)
    try:
        code: object = queues.main(flags, "gpuslice")
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2 and text in capsys.readouterr().err


def _serve(monkeypatch: pytest.MonkeyPatch, forbidden: str = "") -> None:
    """Let the commands read an API server with the queues."""
    served = {QUEUES: raws(), LOCAL_QUEUES: LOCAL}

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == forbidden:
            return refuse(403, "Forbidden", "not allowed")
        return listed(*served[request.path]) if request.path in served else refuse(404, "NotFound")

    monkeypatch.setattr(connecting, "_access", lambda _: Access("http://unused"))
    monkeypatch.setattr(connecting, "connect", lambda *_: client_of(answer))


def test_the_tree_of_a_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _serve(monkeypatch)
    assert queues.main(["-o", "json"], "gpuslice") == 0
    assert json.loads(capsys.readouterr().out) == {"queues": [*queues.rows(raws())]}
    assert queues.main([], "gpuslice") == 0
    assert capsys.readouterr().out.splitlines() == [*queues.lines(raws())]


def test_the_queues_of_a_cluster_are_converted_with_their_local_queues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of queues that are not served, and those of other ClusterQueues, are omitted."""
    _serve(monkeypatch)
    code, text, made = convert(capsys)
    assert code == 1 and "# For 10 GPUs." in text
    found = [each["metadata"]["name"] for each in made if each["kind"] == "LocalQueue"]
    assert found == ["frugal", "team"]


def test_a_missing_right_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _serve(monkeypatch, QUEUES)
    assert queues.main([], "gpuslice") == 2
    role = "(the ClusterRole gpuslice-viewer has this right)"
    assert capsys.readouterr().err == f"gpuslice queues: Forbidden: not allowed {role}\n"
