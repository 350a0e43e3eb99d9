"""The plan gives a container no more than the GPU has, for any input. A plan is kept in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.contract import names
from gpuslice.contract.grant_file import Policy
from nri_plugin.policy import annotation_claims
from nri_plugin.policy import plan as plans
from nri_plugin.policy.checks import Request
from nri_plugin.policy.model import Container, Device, Edits, Mount, Pod, Share, Specs
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.refusals import Reason, Refusal
from tests.nri_plugin.policy import plan_scene as scene
from tests.nri_plugin.policy.plan_scene import (
    HALF,
    MAIN,
    OTHER,
    A,
    B,
    adjusted,
    computing,
    entry,
    grant,
    pod,
)
from tests.support import GIB

RUN, STORE = "/run/gpuslice", scene.STORE
READ_ONLY = ("bind", "ro", "nosuid", "nodev")


def test_the_plan_of_a_grant_exactly() -> None:
    own = f"{RUN}/c0ffee"
    assert adjusted(pod([HALF], main=[grant(A, 5 * GIB, 30)])) == ContainerPlan(
        key="c0ffee",
        container="main",
        shares=(Share(A.uuid, 0, 5 * GIB, 30),),
        files={
            "/.gpuslice": own,
            "/.gpuslice/grant": f"{own}/grant",
            "/.gpuslice/libvgpu.so": STORE,
            "/.gpuslice/region": f"{own}/region",
            "/etc/ld.so.preload": f"{own}/preload",
            "/etc/ld-nix.so.preload": f"{own}/preload-nix",
        },
        env=(
            ("NVIDIA_VISIBLE_DEVICES", A.uuid),
            ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"),
            ("CUDA_DEVICE_SM_LIMIT", "30"),
            ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/cudevshr.cache"),
            ("CUDA_DEVICE_MEMORY_LIMIT_0", str(5 * GIB)),
            ("CUDA_DEVICE_SM_LIMIT_0", "30"),
            ("NVIDIA_CTK", "x"),
        ),
        mounts=(
            scene.LIBCUDA,
            Mount("/.gpuslice", own, (*READ_ONLY, "rprivate")),
            Mount("/.gpuslice/libvgpu.so", STORE, READ_ONLY),
            Mount(
                "/.gpuslice/region", f"{own}/region", ("bind", "rw", "nosuid", "nodev", "noexec")
            ),
            Mount("/etc/ld.so.preload", f"{own}/preload", (*READ_ONLY, "noexec")),
            Mount("/etc/ld-nix.so.preload", f"{own}/preload-nix", (*READ_ONLY, "noexec")),
            Mount("/usr/local/vgpu/libvgpu.so", STORE, READ_ONLY),
        ),
        devices=(Device("/dev/nvidiactl", "c", 195, 255), Device("/dev/nvidia0", "c", 195, 0)),
        hooks=(scene.LDCACHE,),
    )


def test_without_grants_the_pods_containers_share_one_directory() -> None:
    of, preload = pod([HALF, OTHER]), "/etc/ld.so.preload"
    for container in (MAIN, replace(MAIN, id="other", name="sidecar")):
        decision = adjusted(of, container)
        assert (decision.key, decision.shared) == ("pod-0f0f-11", True)
        assert decision.preloads[preload] == f"preload.{container.name}"
        sources = {mount.destination: mount.source for mount in decision.mounts}
        assert sources[preload] == f"{RUN}/pod-0f0f-11/preload.{container.name}"
        stored = plans.decode(plans.encode(decision), "pod-0f0f-11", container.name)
        assert stored == ContainerPlan(
            key=decision.key, container=container.name, files=decision.files
        )
    # The ratio is rounded down, bytes are unchanged, and a missing gpu-core means all compute.
    second = Share(B.uuid, 1, 3 * GIB, 100, uncapped=True)
    assert decision.shares == (Share(A.uuid, 0, 20 * GIB, 50), second)
    env = dict(decision.env)
    assert env["NVIDIA_VISIBLE_DEVICES"] == f"{A.uuid},{B.uuid}"
    assert env["CUDA_DEVICE_MEMORY_LIMIT_1"] == str(3 * GIB)
    assert [d.path for d in decision.devices] == ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"]
    assert adjusted(pod([replace(OTHER, id=None)])).shares == (second,), "by its minor alone"
    of = pod([replace(HALF, id=None)], main=[grant(A, GIB)])
    assert adjusted(of).shares == (Share(A.uuid, 0, GIB, 50),)
    assert adjusted(pod([entry(memory=7, ratio=50)])).shares[0].memory_bytes == 7


def test_a_grant_of_100_percent_beside_one_of_less_holds_no_compute() -> None:
    of = pod([HALF], main=[grant(A, GIB, 100)], sidecar=[grant(A, GIB, 50)])
    assert adjusted(of).shares == (Share(A.uuid, 0, GIB, 100, uncapped=True),)
    assert adjusted(of, replace(MAIN, id="other", name="sidecar")).shares == (
        Share(A.uuid, 0, GIB, 50),
    )


def test_the_environment_counts_gpus_as_the_driver_does() -> None:
    decision = adjusted(pod([HALF, OTHER], main=[grant(B, 2 * GIB, 7), grant(A, GIB, 5)]))
    assert [share.uuid for share in decision.shares] == [B.uuid, A.uuid]
    env = dict(decision.env)
    assert env["NVIDIA_VISIBLE_DEVICES"] == f"{A.uuid},{B.uuid}"
    for number, (memory_bytes, core) in enumerate(((GIB, "5"), (2 * GIB, "7"))):
        assert env[f"CUDA_DEVICE_MEMORY_LIMIT_{number}"] == str(memory_bytes)
        assert env[f"CUDA_DEVICE_SM_LIMIT_{number}"] == core


@pytest.mark.parametrize(
    ("of", "policy"),
    [
        (pod([HALF], main=[grant(A)]), Policy.CAPPED),
        (computing(pod([HALF], main=[grant(A)]), pod="turns", side="fair"), Policy.TURNS),
        (computing(pod([HALF], main=[grant(A)]), pod="fast", main="background"), Policy.BACKGROUND),
        (computing(pod([HALF]), pod="fair", main="turns"), Policy.FAIR),
    ],
    ids=["the node's", "the pod's", "the container's", "the pod's in a shared grant"],
)
def test_the_compute_policy(of: Pod, policy: Policy) -> None:
    claim = annotation_claims.claim(of, "main", (A, B))
    assert claim is not None
    request = Request(of, MAIN, claim, "key", scene.SPECS, scene.PATHS)
    plan = plans.with_share(request, default=Policy.CAPPED)
    assert (plan.policy, plan.log_fields["policy"]) == (policy, policy.value)


def test_a_container_without_a_share_may_have_any_annotation() -> None:
    for of in (pod(labels={}), pod([HALF], other=[grant(A)])):
        assert not isinstance(scene.decide(computing(of, pod="x", main="y")), Refusal)


@pytest.mark.parametrize("name", ["fetch", "main"])
def test_an_init_container_may_have_all_that_a_main_one_has(name: str) -> None:
    """An init container and a main one never run at once. The ledger counts running containers."""
    all_of_it = [grant(A, 20 * GIB, 0)]
    decision = adjusted(pod([HALF], fetch=all_of_it, main=all_of_it), replace(MAIN, name=name))
    assert decision.shares == (Share(A.uuid, 0, 20 * GIB, 0),)
    limits = {value for key, value in decision.env if key.startswith(names.ENV_CORE_LIMIT)}
    assert limits == {"1"}, "never as no limit"


def test_strict_mode_puts_forwarders_in_the_drivers_place() -> None:
    files = {
        "libcuda.so.1": "/host/libcuda.so.1",
        "libcuda.so.580.65.06": "/host/libcuda.so.580",
        "libnvidia-ml.so.1": "/host/nvml",
        "libcudadebugger.so.1": "/host/debugger",
    }
    driver = tuple(Mount(f"/usr/lib/x/{name}", file, ("ro",)) for name, file in files.items())
    specs = Specs({A.uuid: scene.device(A, common=Edits(mounts=driver))})
    forwarders = {soname: f"/store/{soname}" for soname in names.DRIVER_SONAMES}
    strict = replace(scene.PATHS, forwarders=forwarders)
    decision = adjusted(pod([HALF]), specs=specs, paths=strict)
    sources = sorted(mount[:2] for mount in decision.mounts)
    ours = {
        "/usr/lib/x/libcuda.so.1": "/store/libcuda.so.1",
        "/usr/lib/x/libcuda.so.580.65.06": "/store/libcuda.so.1",
        "/usr/lib/x/libnvidia-ml.so.1": "/store/libnvidia-ml.so.1",
        "/.gpuslice/driver/libcuda.so.1": "/host/libcuda.so.580",
        "/.gpuslice/driver/libnvidia-ml.so.1": "/host/nvml",
    }
    assert ours.items() <= decision.files.items()
    plain = adjusted(pod([HALF]), specs=specs).mounts
    assert set(driver) <= set(plain)
    kept = [mount[:2] for mount in plain if mount not in driver[:-1]]
    assert sources == sorted([*kept, *ours.items()])
    order = [mount.destination for mount in decision.mounts]
    assert order.index(names.CONTAINER_DIR) < order.index("/.gpuslice/driver/libcuda.so.1")
    over = replace(MAIN, mounts=(Mount("/usr/lib/x", "/volume"),))
    scene.refused(Reason.MOUNT_COLLISION, pod([HALF]), over, specs, strict)


@pytest.mark.parametrize("destination", ["/usr/local", "/usr/local/vgpu", "/usr"])
def test_the_visible_library_gives_way_to_a_volume(destination: str) -> None:
    decision = adjusted(pod([HALF]), replace(MAIN, mounts=(Mount(destination, "/volume"),)))
    places = {mount.destination for mount in decision.mounts}
    assert names.CONTAINER_LIBRARY_VISIBLE not in places and names.CONTAINER_PRELOAD in places


def test_the_driver_is_held_to_what_the_operator_allows() -> None:
    encode = Mount("/usr/lib/libnvidia-encode.so.580", "/host/encode", ("bind", "ro"))
    nodes = (Device("/dev/nvidia0", "c", 195, 0), Device("/dev/dri/renderD128", "c", 226, 128))
    common = Edits(mounts=(scene.LIBCUDA, encode))
    specs = Specs({A.uuid: scene.device(A, own=Edits(devices=nodes), common=common)})
    asked = replace(MAIN, env=[f"{names.ENV_DRIVER_CAPABILITIES}=graphics,video"])
    paths = replace(scene.PATHS, capabilities={"graphics"})
    decision = adjusted(pod([HALF]), asked, specs, paths)
    assert dict(decision.env)[names.ENV_DRIVER_CAPABILITIES] == "compute,utility,graphics"
    assert decision.cut == ("video",)
    assert scene.LIBCUDA in decision.mounts and encode not in decision.mounts
    assert decision.devices == nodes


ODD = st.sampled_from(["1Gi", "500m", "-1", "x", "", None, True, 1.5, "1e30", "\u0661"])
MEMORY = st.sampled_from([0, 1, *(size * GIB + more for size in (40, 80) for more in (0, 1))])
PERCENT = st.sampled_from([0, 1, 50, 100, 101])
PLACE = st.sampled_from([{"id": gpu.uuid, "minor": gpu.minor} for gpu in (A, B)])
BY_MINOR = st.just({"minor": 0})
RESOURCES = st.fixed_dictionaries(
    {names.RESOURCE_CORE: PERCENT | PERCENT | ODD},
    optional={names.RESOURCE_MEMORY: MEMORY, names.RESOURCE_MEMORY_RATIO: PERCENT},
)
ENTRY: Any = st.builds(dict, PLACE | BY_MINOR, resources=RESOURCES)
GRANTED = {"memory": st.sampled_from([1, 40 * GIB, 40 * GIB + 1]), "core": st.integers(0, 101)}
GRANT: Any = st.builds(dict, PLACE, **GRANTED)
ENTRIES, GRANTS = (st.lists(each, min_size=1, max_size=2) for each in (ENTRY, GRANT))


@settings(max_examples=500)
@given(
    st.none() | st.text() | ENTRIES.map(lambda entries: json.dumps({"gpu": entries})),
    st.none() | st.fixed_dictionaries({"main": GRANTS}, optional={"side": GRANTS}),
    st.sampled_from([{}, scene.LABEL, {names.LABEL_ISOLATION_PROVIDER: "mig"}]),
)
def test_never_more_than_a_gpu(
    text: str | None, granted: object, labels: Mapping[str, str]
) -> None:
    grants = None if granted is None else json.dumps({"v": 1, "containers": granted})
    of = pod(labels=labels, allocated=text, granted=grants)
    for name in ("main", "side"):
        decision = scene.decide(of, Container(f"id-{name}", name))
        if isinstance(decision, Refusal):
            assert decision.text
        elif decision is None:
            assert labels.get(names.LABEL_ISOLATION_PROVIDER) != "hami-core"
        elif decision.key is None:
            assert dict(decision.env)["NVIDIA_VISIBLE_DEVICES"] == "void"
            assert not decision.devices
        else:
            uuids = [share.uuid for share in decision.shares]
            assert uuids and len({*uuids}) == len(uuids)
            for share in decision.shares:
                assert 0 < share.memory_bytes <= {A.uuid: 40 * GIB, B.uuid: 80 * GIB}[share.uuid]
                assert 0 <= share.core_percent <= 100


@pytest.mark.parametrize(
    "data", ["", "{", "[]", "null", '{"v":2,"files":{}}', '{"v":1}', '{"v":1,"files":{"/a":1}}']
)
def test_a_plan_that_cannot_be_read(data: str) -> None:
    assert plans.decode(data.encode(), "c0", "main") is None
