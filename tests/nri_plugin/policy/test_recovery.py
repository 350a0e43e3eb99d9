"""State recovered from the runtime's list, this host's files, and the pods' annotations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuslice.contract import allocation, grant_file, grants, names
from gpuslice.contract.allocation import Allocation, DeviceEntry
from gpuslice.contract.grants import GpuGrant
from nri_plugin.policy import annotation_claims
from nri_plugin.policy.ledger import Part
from nri_plugin.policy.model import Gpu, Pod
from nri_plugin.policy.recovery import Running, Stray, Survey, survey

GPU = Gpu("GPU-a", 0, 1000)


def allocated(core: int | None = 50, minor: int = 0, uuid: str | None = GPU.uuid) -> str:
    resources = {names.RESOURCE_MEMORY: 400}
    if core is not None:
        resources[names.RESOURCE_CORE] = core
    return allocation.encode(Allocation({"gpu": [DeviceEntry(minor, resources, uuid)]}))


def pod(text: str, granted: bool = True) -> Pod:
    annotations = {names.ANNOTATION_DEVICE_ALLOCATED: text}
    if granted:
        annotations[names.ANNOTATION_GRANTS] = grants.encode(
            {"main": [GpuGrant(GPU.uuid, 0, 300, 40)]}
        )
    return Pod("u1", "team", "train", {}, annotations)


ABSENT = Pod("u2", "team", "web")
MAIN = Running("c1", "main", pod(allocated()), "c1")
IN_FORCE = grant_file.Grant(7, (grant_file.Gpu(GPU.uuid, 299, 39, 0),))


def look(*running: Running, in_force: bool = True, gpus: tuple[Gpu, ...] = (GPU,)) -> Survey:
    keys = {one.key for one in running if one.key is not None} if in_force else set()
    return survey(running, dict.fromkeys(keys, IN_FORCE), gpus, annotation_claims)


def test_what_is_in_force_outranks_the_annotation() -> None:
    found = look(MAIN)
    assert found.users == {"c1": {"c1"}}
    assert [held.parts for held in found.holds] == [{GPU.uuid: Part(299, 39)}]
    assert (found.holds[0].container_key, found.holds[0].pod_uid) == ("team/train/main", "u1")
    assert found.strays == []
    found = look(replace(MAIN, stopped=True))
    assert (found.users, found.holds, found.strays) == ({"c1": {"c1"}}, [], [])


def test_without_files_the_hold_is_that_of_the_annotation() -> None:
    found = look(MAIN, in_force=False)
    assert [held.parts for held in found.holds] == [{GPU.uuid: Part(300, 40)}]
    assert found.strays == [(Stray.FILES_LOST, MAIN)]
    lost = replace(MAIN, pod=pod("{"))
    found = look(lost, in_force=False)
    assert [dict(held.parts) for held in found.holds] == [{}]
    assert found.strays == [(Stray.FILES_LOST, lost)]


@pytest.mark.parametrize(
    ("text", "percent"),
    [
        (allocated(None), 0),
        (allocated(None, uuid=None), 0),
        (allocated(50), 39),
        (allocated(None, minor=1), 39),
        (allocated(None, uuid="GPU-b"), 39),
        ("{", 39),
    ],
)
def test_a_shared_grant_without_a_cap_holds_no_compute(text: str, percent: int) -> None:
    """Also if the driver, and so the GPUs, came late."""
    of = pod(text, granted=False)
    one = Running("c1", "main", of, "pod-u1")
    found = look(one, Running("c2", "side", of, "pod-u1"), gpus=())
    assert found.users == {"pod-u1": {"c1", "c2"}}
    assert [held.container_key for held in found.holds] == ["team/train"] * 2
    assert [held.parts for held in found.holds] == [{GPU.uuid: Part(299, percent)}] * 2


def test_a_created_container_holds_nothing_once_its_successor_runs() -> None:
    """The runtime was killed between its creation and its start: it stays listed as created, and
    the kubelet has made another."""
    never = replace(MAIN, waiting=True)
    successor = replace(MAIN, id="c2", key="c2")
    assert [held.container_id for held in look(never, successor).holds] == ["c2"]
    assert [held.container_id for held in look(successor, never).holds] == ["c2"]
    assert look(never, successor).users == {"c1": {"c1"}, "c2": {"c2"}}


def test_a_created_container_without_successor_holds_its_share() -> None:
    waiting = replace(MAIN, waiting=True)
    second = replace(MAIN, id="c2", key="c2")
    nameless = replace(MAIN.pod, uid="")  # a container of an unknown pod has no counterpart
    for one, other in (
        (waiting, replace(second, waiting=True)),
        (waiting, replace(second, name="side")),
        (waiting, replace(second, pod=replace(MAIN.pod, uid="u3"))),
        (replace(waiting, pod=nameless), replace(second, pod=nameless)),
    ):
        assert len(look(one, other).holds) == 2
    exited = replace(MAIN, id="c2", key="c2", stopped=True)
    assert [held.container_id for held in look(waiting, exited).holds] == ["c1"]


def test_a_granted_container_without_adjustment_is_reported() -> None:
    missed = replace(MAIN, key=None)
    assert look(missed).strays == [(Stray.NOT_ADJUSTED, missed)]
    (held,) = look(missed).holds
    assert (held.adjusted, held.parts) == (False, {GPU.uuid: Part(300, 40)}), "it is not free"
    unreadable = replace(missed, pod=pod("{"))
    assert look(unreadable).strays == [(Stray.NOT_ADJUSTED, unreadable)]
    assert look(unreadable).holds == []
    assert look(replace(missed, name="sidecar")).strays == []
    assert look(replace(missed, pod=ABSENT)).strays == []


def test_a_gpu_of_another_plugin_is_reported() -> None:
    theirs = Running("c1", "main", ABSENT, None, nodes=["/dev/nvidia0"])
    assert look(theirs).strays == [(Stray.FOREIGN_GPU, theirs)]
    agent = replace(theirs, pod=replace(ABSENT, namespace=names.NAMESPACE))
    assert look(agent).strays == []
    assert look(replace(MAIN, nodes=["/dev/nvidia0"])).strays == []
    # Our device plugin gave it. The kubelet's record has the UID alone, as of an init container.
    for whole in (f"{ABSENT.namespace}/{ABSENT.name}", ABSENT.uid):
        assert survey([theirs], {}, [], annotation_claims, {whole}).strays == []


def test_gpus_of_nvidias_runtime_are_reported() -> None:
    """It was created while the agent did not run; a sidecar of a pod with a share may be, too."""
    for of in (ABSENT, MAIN.pod):
        missed = Running("c1", "sidecar", of, None, missed=True)
        assert look(missed).strays == [(Stray.NVIDIA_RUNTIME, missed)]
        assert look(replace(missed, stopped=True)).strays == []
