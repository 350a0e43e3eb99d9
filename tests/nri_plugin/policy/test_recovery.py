"""State is recovered from the runtime's list, this host's files, and the pods' annotations."""

from __future__ import annotations

from dataclasses import replace

from gpuslice.contract import grant_file, names
from nri_plugin.policy import annotation_claims
from nri_plugin.policy.front_ends import FrontEnds
from nri_plugin.policy.ledger import Part
from nri_plugin.policy.model import Gpu, Pod
from nri_plugin.policy.recovery import Running, Stray, Survey, survey
from tests.nri_plugin.policy.plan_scene import A, B, entry, grant, pod

ABSENT = Pod("u2", "team", "web")
GRANTED = [grant(A, 300, 40)]
MAIN = Running("c1", "main", pod([entry(memory=400, core=50)], main=GRANTED), "c1")
UNREADABLE = replace(MAIN, pod=pod(allocated="{", main=GRANTED))
IN_FORCE = grant_file.Grant(7, (grant_file.Gpu(A.uuid, 299, 39, 0),))


def look(*running: Running, in_force: bool = True, gpus: tuple[Gpu, ...] = (A,)) -> Survey:
    keys = {one.key for one in running if one.key is not None} if in_force else set()
    return survey(running, dict.fromkeys(keys, IN_FORCE), gpus, FrontEnds())


def holders(*running: Running) -> list[str]:
    return [held.container_id for held in look(*running).holds]


def test_what_is_in_force_outranks_the_annotation() -> None:
    found = look(MAIN)
    assert (found.users, found.strays) == ({"c1": {"c1"}}, [])
    (held,) = found.holds
    assert held.parts == {A.uuid: Part(299, 39)}
    assert (held.container_key, held.pod_uid) == ("team/train/main", MAIN.pod.uid)
    found = look(replace(MAIN, stopped=True))
    assert (found.users, found.holds, found.strays) == ({"c1": {"c1"}}, [], [])


def test_100_percent_in_force_of_an_allocation_of_less_holds_no_compute() -> None:
    for core, uncapped in ((100, True), (40, False)):
        assert annotation_claims.is_uncapped(MAIN.pod, A.uuid, 0, core) is uncapped


def test_without_files_the_hold_is_that_of_the_annotation() -> None:
    for lost, parts in ((MAIN, {A.uuid: Part(300, 40)}), (UNREADABLE, {})):
        found = look(lost, in_force=False)
        assert [held.parts for held in found.holds] == [parts]
        assert found.strays == [(Stray.FILES_LOST, lost)]


def test_a_shared_grant_without_a_cap_holds_no_compute() -> None:
    """This is also true before the driver is loaded, while the agent knows no GPU."""
    for of, percent in (
        (pod([entry(memory=400)]), 0),
        (pod([entry(None, memory=400)]), 0),
        (pod([entry(memory=400, core=50)]), 39),
        (pod([entry(minor=1, memory=400)]), 39),
        (pod([entry(B.uuid, memory=400)]), 39),
        (pod(allocated="{"), 39),
    ):
        one = Running("c1", "main", of, "pod-u1")
        found = look(one, replace(one, id="c2", name="side"), gpus=())
        assert found.users == {"pod-u1": {"c1", "c2"}}
        assert [held.container_key for held in found.holds] == ["team/train"] * 2
        assert [held.parts for held in found.holds] == [{A.uuid: Part(299, percent)}] * 2


def test_containers_with_claims_have_holds_of_their_own() -> None:
    found = look(replace(MAIN, key="claim-u_a"), replace(MAIN, id="c2", key="claim-u_b", name="b"))
    assert [held.container_key for held in found.holds] == ["team/train/main", "team/train/b"]


def test_a_created_container_holds_nothing_once_its_successor_runs() -> None:
    """The runtime was killed before the first container's start. The kubelet made another."""
    never, successor = replace(MAIN, waiting=True), replace(MAIN, id="c2", key="c2")
    assert holders(never, successor) == holders(successor, never) == ["c2"]
    assert look(never, successor).users == {"c1": {"c1"}, "c2": {"c2"}}
    assert holders(never, replace(successor, stopped=True)) == ["c1"]
    nameless = replace(MAIN.pod, uid="")  # a container of an unknown pod has no successor
    for one, other in (
        (never, replace(successor, waiting=True)),
        (never, replace(successor, name="side")),
        (never, replace(successor, pod=replace(MAIN.pod, uid="u3"))),
        (replace(never, pod=nameless), replace(successor, pod=nameless)),
    ):
        assert holders(one, other) == ["c1", "c2"]


def test_a_granted_container_without_adjustment_is_reported() -> None:
    missed, unreadable = replace(MAIN, key=None), replace(UNREADABLE, key=None)
    assert look(missed).strays == [(Stray.NOT_ADJUSTED, missed)]
    (held,) = look(missed).holds
    assert (held.adjusted, held.key, held.parts) == (False, "c1", {A.uuid: Part(300, 40)})
    assert look(unreadable).strays == [(Stray.NOT_ADJUSTED, unreadable)]
    assert look(unreadable).holds == []
    for without in (replace(missed, name="sidecar"), replace(missed, pod=ABSENT)):
        assert look(without).strays == []


def test_a_gpu_of_another_plugin_is_reported() -> None:
    theirs = Running("c1", "main", ABSENT, None, nodes=["/dev/nvidia0"])
    assert look(theirs).strays == [(Stray.FOREIGN_GPU, theirs)]
    agent = replace(theirs, pod=replace(ABSENT, namespace=names.NAMESPACE))
    for ours in (agent, replace(MAIN, nodes=theirs.nodes)):
        assert look(ours).strays == []
    # The agent's own device plugin assigned the GPU to this pod: by name, or for an init container
    # by UID, because the kubelet's record has no names.
    for whole in ("team/web", ABSENT.uid):
        assert survey([theirs], {}, [], FrontEnds(), {whole}).strays == []


def test_gpus_of_nvidias_runtime_are_reported() -> None:
    """NVIDIA's runtime created the container without the agent, in a pod with or without shares."""
    for of in (ABSENT, MAIN.pod):
        missed = Running("c1", "sidecar", of, None, missed=True)
        assert look(missed).strays == [(Stray.NVIDIA_RUNTIME, missed)]
        assert look(replace(missed, stopped=True)).strays == []
