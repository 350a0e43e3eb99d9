"""What the leader writes: Kueue's objects, the Queues' status, Events and metrics."""

from __future__ import annotations

import pytest
from aiohttp import web

from scheduler.queues import controller, tree
from tests.queues.kai import Q
from tests.queues.scene import CRD, EVENTS, KUEUE, LOCAL, QUEUES, SIZES, Scene
from tests.support import until_async


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "_STEP_S", 0.02)
    monkeypatch.setattr(controller, "_SHOW_S", 0.0)


async def test_kueues_objects_follow_queues_pods_and_nodes() -> None:
    scene = Scene()
    leaf, root = f"{KUEUE}/clusterqueues/test", f"{KUEUE}/cohorts/{tree.ROOT}"
    async with scene.running():
        await until_async(lambda: scene.nominal(leaf) == "4000")
        assert scene.nominal(root) == scene.nominal(f"{KUEUE}/cohorts/default") == "0"
        assert scene.there(f"{LOCAL}/test") is None
        scene.pod("p")
        await until_async(lambda: scene.there(f"{LOCAL}/test"))
        scene.queue(Q("test", 1, 3, parent="default"))
        await until_async(lambda: scene.nominal(leaf) == "1000")
        scene.gpus = 6
        await until_async(lambda: scene.nominal(f"{KUEUE}/cohorts/default") == "5000")
        await scene.looked()
        before = len(scene.api.writes)
        await scene.looked()
        assert len(scene.api.writes) == before, "nothing is written that did not change"


async def test_a_queue_that_is_created_during_a_step_is_served_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    answer = scene.api.answer

    async def create_meanwhile(request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and scene.there(f"{QUEUES}/late") is None:
            scene.queue(Q("late"))
            await scene.looked()
        return await answer(request)

    monkeypatch.setattr(scene.api, "answer", create_meanwhile)
    async with scene.running():
        await until_async(lambda: scene.there(f"{QUEUES}/late"))
        await until_async(lambda: scene.ready("late").get("reason") == "Served")


async def test_a_smaller_capacity_counts_if_it_lasts() -> None:
    scene = Scene()
    leaf = f"{KUEUE}/clusterqueues/test"
    async with scene.running():
        await until_async(lambda: scene.nominal(leaf) == "4000")
        scene.gpus = 2
        await scene.looked()
        scene.now_s += 9
        await scene.looked()
        assert scene.nominal(leaf) == "4000"
        scene.now_s += 1
        await until_async(lambda: scene.nominal(leaf) == "2000")


async def test_an_empty_local_queue_is_removed_after_a_minute() -> None:
    scene = Scene()
    scene.pod("p")
    async with scene.running():
        await until_async(lambda: scene.there(f"{LOCAL}/test"))
        scene.api.remove("/api/v1/namespaces/team/pods/p")
        scene.now_s += 100
        await scene.looked()
        assert scene.there(f"{LOCAL}/test"), "its Workload has not ended"
        scene.api.remove(f"{KUEUE}/namespaces/team/workloads/p")
        await scene.looked()
        assert scene.there(f"{LOCAL}/test")
        scene.now_s += 60
        await until_async(lambda: scene.there(f"{LOCAL}/test") is None)


async def test_pods_of_other_namespaces_get_no_queue() -> None:
    scene = Scene()
    scene.pod("p", namespace="other")
    scene.pod("q")
    async with scene.running():
        await until_async(lambda: scene.there(f"{LOCAL}/test"))
        assert not any("/other/localqueues" in path for path in scene.api.objects)
        scene.now_s += 60
        await until_async(scene.notes)
        assert len(scene.notes()) == 1, "nothing is said about the other namespace's pod"


async def test_a_local_queue_stays_while_pods_wait_though_the_label_goes() -> None:
    scene = Scene()
    scene.pod("waits")
    async with scene.running():
        await until_async(lambda: scene.there(f"{LOCAL}/test"))
        scene.api.remove("/api/v1/namespaces/team")
        await scene.looked()
        assert scene.there(f"{LOCAL}/test")
        scene.api.remove(f"{KUEUE}/namespaces/team/workloads/waits")
        await until_async(lambda: scene.there(f"{LOCAL}/test") is None)


async def test_a_local_queue_that_is_refused_concerns_its_namespace_only() -> None:
    scene = Scene()
    scene.pod("waits")
    scene.api.refused[LOCAL] = 403
    async with scene.running():
        await until_async(lambda: scene.ready("test"))
        scene.now_s += 10
        await until_async(scene.notes)
        await scene.looked()
        assert scene.ready("test")["reason"] == "Served"
        (note,) = scene.notes()
        assert note.startswith("waits in queue test")
        assert "LocalQueue team/test: " in note
        assert "refused by the test" in note


async def test_a_cohort_that_others_share_is_not_served() -> None:
    scene = Scene()
    path = f"{KUEUE}/clusterqueues/mine"
    scene.api.put(path, {"metadata": {"name": "mine"}, "spec": {"cohortName": "default"}})
    async with scene.running():
        await until_async(lambda: scene.ready("default").get("reason") == "NameTaken")
        assert (
            "ClusterQueue that gpuslice did not create: mine" in scene.ready("default")["message"]
        )
        scene.api.remove(path)
        await until_async(lambda: scene.ready("default").get("reason") == "Served")


async def test_a_users_flavor_is_a_choice(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.api.put(f"{KUEUE}/resourceflavors/gpuslice", {"metadata": {"name": "gpuslice"}})
    scene.queue(Q("gpuslice"))
    async with scene.running():
        await until_async(lambda: scene.ready("gpuslice").get("reason") == "Served")
    assert "not served" not in caplog.text


async def test_a_removed_queue_loses_its_objects_and_those_of_others_stay() -> None:
    scene = Scene()
    theirs = {"metadata": {"name": "mine"}, "spec": {}}
    scene.api.put(f"{KUEUE}/clusterqueues/mine", theirs)
    scene.queue(Q("mine"))
    async with scene.running():
        await until_async(lambda: scene.ready("mine"))
        assert scene.ready("mine")["reason"] == "NameTaken"
        assert scene.ready("test")["reason"] == "Served"
        scene.api.remove(f"{QUEUES}/test")
        scene.api.remove(f"{QUEUES}/mine")
        await until_async(lambda: scene.there(f"{KUEUE}/clusterqueues/test") is None)
        kept = scene.there(f"{KUEUE}/clusterqueues/mine")
        assert kept and kept["spec"] == {}
        # A queue without children is a leaf.
        await until_async(lambda: scene.there(f"{KUEUE}/clusterqueues/default"))


@pytest.mark.parametrize("broken", [Q("test", -5, parent="default"), None])
async def test_a_queue_that_is_broken_for_a_while_is_held_and_goes_on(broken: Q | None) -> None:
    """Kueue would keep a deleted ClusterQueue until its last pod ends."""
    scene, runs = Scene(), ("None", "default", "4000")
    scene.queue(Q("other", parent="default"))
    scene.pod("p", gated=False)
    async with scene.running():
        for ends in (False, True):
            await until_async(lambda: scene.leaf("test") == runs)
            if broken:
                scene.queue(broken)
            else:
                scene.api.remove(f"{QUEUES}/test")
            await until_async(lambda: scene.leaf("test") == ("Hold", "default", "0"))
            await scene.looked()
            assert scene.leaf("test") == ("Hold", "default", "0")
            assert scene.nominal(f"{KUEUE}/cohorts/default") == "4000"
            shown = scene.api.objects[f"{QUEUES}/default"]["status"]
            assert shown["allocated"] == {"nvidia.com/gpu": "300m"}
            if broken:
                assert scene.ready("test")["reason"] == "InvalidSpec"
                assert scene.amount("allocated") == "300m"
            if not ends:
                scene.queue(Q("test", -1, parent="default"))
        scene.api.remove(f"{KUEUE}/namespaces/team/workloads/p")
        await until_async(lambda: scene.there(f"{KUEUE}/clusterqueues/test") is None)


async def test_a_leaf_that_gets_a_child_counts_below_the_new_cohort() -> None:
    scene = Scene()
    scene.pod("p", gated=False)
    async with scene.running():
        await until_async(lambda: scene.leaf("test") == ("None", "default", "4000"))
        del scene.api.writes[:]
        scene.queue(Q("child", 1, parent="test"))
        await until_async(lambda: scene.leaf("child") == ("None", "test", "1000"))
        assert scene.leaf("test") == ("Hold", "test", "0")
        clusterqueues = [path for _, path in scene.api.writes if "/clusterqueues" in path]
        assert clusterqueues[0] == f"{KUEUE}/clusterqueues/test", "held before the child admits"
        await until_async(lambda: scene.ready("test").get("reason") == "PodsInInnerQueue")
        assert scene.amount("allocated") == "300m"
        shown = scene.api.objects[f"{QUEUES}/default"]["status"]
        assert shown["allocated"] == {"nvidia.com/gpu": "300m"}


async def test_an_object_that_is_being_deleted_is_left_alone() -> None:
    """Kueue keeps what a user deletes until its pods have ended. Then the Queue gets a new one."""
    scene = Scene()
    leaf = f"{KUEUE}/clusterqueues/test"
    async with scene.running():
        await until_async(lambda: scene.nominal(leaf) == "4000")
        raw = scene.api.objects[leaf]
        scene.api.put(leaf, {**raw, "metadata": {**raw["metadata"], "deletionTimestamp": "now"}})
        scene.api.remove(f"{QUEUES}/test")
        await until_async(lambda: scene.there(f"{KUEUE}/clusterqueues/default"))
        scene.queue(Q("test", 1, parent="default"))
        await until_async(lambda: scene.ready("test").get("reason") == "Terminating")
        assert "is being deleted" in scene.ready("test")["message"]
        assert not [path for method, path in scene.api.writes if path == leaf]
        scene.api.remove(leaf)
        await until_async(lambda: scene.nominal(leaf) == "1000")
        await until_async(lambda: scene.ready("test")["reason"] == "Served")


async def test_status_events_and_metrics_show_the_use() -> None:
    scene = Scene()
    scene.pod("runs", gated=False)
    scene.pod("waits")
    scene.pod("lost", "nowhere")
    async with scene.running():
        await until_async(lambda: scene.ready("default"))
        await until_async(lambda: scene.amount("requested") == "600m")
        assert scene.amount("allocated") == "300m"
        assert scene.api.objects[f"{QUEUES}/default"]["status"]["childQueues"] == ["test"]
        await until_async(scene.notes)
        assert [note.split(":")[0] for note in scene.notes()] == [
            "metadata.labels[kai.scheduler/queue]"
        ]
        scene.now_s += 60
        await until_async(lambda: len(scene.notes()) == 3)
        assert any("do not add up to 0.3 GPUs" in note for note in scene.notes())
        assert any(note.startswith("waits in queue test") for note in scene.notes())
        await scene.looked()
        scene.pod("more", gated=False)
        await until_async(lambda: scene.amount("allocated") == "600m")
        await scene.looked()
        assert len(scene.notes()) == 3, "each is said once, though the use changes"
        assert (scene.gauge("gpus", "quota"), scene.gauge("gpus", "allocated")) == (4.0, 0.6)
        assert (scene.gauge("pods", "waiting"), scene.gauge("pods", "unplaceable")) == (1.0, 1.0)
        scene.leads = False
        await until_async(lambda: scene.gauge("pods", "waiting") is None)


async def test_only_the_leader_writes() -> None:
    scene = Scene()
    scene.leads = False
    async with scene.running():
        await scene.looked()
        assert scene.api.writes == []


async def test_where_kai_is_installed_conditions_and_events_say_so() -> None:
    scene = Scene()
    scene.api.put(CRD, {"metadata": {"name": "crd", "labels": {}}})
    scene.pod("p")
    scene.pod("runs", gated=False)
    async with scene.running():
        await until_async(lambda: scene.ready("test") and scene.ready("default"))
        assert scene.ready("test")["reason"] == "KAIInstalled"
        scene.now_s += 60
        await scene.looked()
    (note,) = scene.notes()
    assert note.endswith(
        "must be a Queue that is served; KAI-Scheduler installed the CRD and owns Queues"
    )
    assert {path for _, path in scene.api.writes if not path.startswith(EVENTS)} == {
        *(SIZES, f"{QUEUES}/test/status", f"{QUEUES}/default/status")
    }


async def test_without_kueue_the_condition_says_so() -> None:
    scene = Scene()
    for plural in ("cohorts", "workloads"):
        scene.api.refused[f"{KUEUE}/{plural}"] = 404
    async with scene.running():
        await until_async(lambda: scene.ready("test"))
        assert scene.ready("test")["reason"] == "KueueUnavailable"
        scene.api.refused.clear()
        await until_async(lambda: scene.ready("test")["reason"] == "Served")


async def test_an_object_that_is_refused_keeps_no_other_from_being_written() -> None:
    scene = Scene()
    scene.api.refused[f"{KUEUE}/cohorts"] = 422
    async with scene.running():
        # The refusal affects the list of cohorts too, so it begins after that.
        scene.api.refused.clear()
        await until_async(lambda: scene.there(f"{KUEUE}/clusterqueues/test"))
        scene.api.refused[f"{KUEUE}/clusterqueues"] = 422
        scene.queue(Q("new", 1))
        scene.queue(Q("deep", parent="default"))
        await until_async(lambda: scene.ready("new"))
        assert scene.ready("new")["reason"] == "Refused"
        assert "refused by the test" in scene.ready("new")["message"]
        assert scene.ready("test")["status"] == "True"


async def test_the_sizes_of_the_gpus_are_written_for_the_policy() -> None:
    scene = Scene()
    async with scene.running():
        await until_async(lambda: (scene.there(SIZES) or {}).get("data") == {"mib": "40960"})
