"""What a container gets, for every input never more than the GPU; and the plan in its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract import names
from nri_plugin.policy import plan as plans
from nri_plugin.policy.model import (
    CdiDevice,
    Container,
    Device,
    Edits,
    Mount,
    Pod,
    Share,
    Specs,
)
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.refusals import Reason, Refusal
from tests.nri_plugin.policy.plan_scene import (
    CORE,
    GPUS,
    HALF,
    LABEL,
    LDCACHE,
    LIBCUDA,
    MAIN,
    MEMORY,
    OTHER,
    PATHS,
    RATIO,
    STORE,
    A,
    B,
    adjusted,
    decide,
    device,
    entry,
    grant,
    pod,
    refused,
)
from tests.support import GIB


def test_the_plan_of_a_grant_exactly() -> None:
    decision = decide(pod([HALF], {"main": [grant(A, 5 * GIB, 30)]}))
    run, plain = "/run/gpuslice/c0ffee", ("nosuid", "nodev", "noexec")
    assert decision == ContainerPlan(
        key="c0ffee",
        container="main",
        shares=(Share(A.uuid, 0, 5 * GIB, 30),),
        files={
            "/.gpuslice": run,
            "/.gpuslice/grant": f"{run}/grant",
            "/.gpuslice/libvgpu.so": STORE,
            "/.gpuslice/region": f"{run}/region",
            "/etc/ld.so.preload": f"{run}/preload",
            "/etc/ld-nix.so.preload": f"{run}/preload-nix",
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
            LIBCUDA,
            Mount("/.gpuslice", run, ("bind", "ro", "nosuid", "nodev", "rprivate")),
            Mount("/.gpuslice/libvgpu.so", STORE, ("bind", "ro", "nosuid", "nodev")),
            Mount("/.gpuslice/region", f"{run}/region", ("bind", "rw", *plain)),
            Mount("/etc/ld.so.preload", f"{run}/preload", ("bind", "ro", *plain)),
            Mount("/etc/ld-nix.so.preload", f"{run}/preload-nix", ("bind", "ro", *plain)),
            Mount("/usr/local/vgpu/libvgpu.so", STORE, ("bind", "ro", "nosuid", "nodev")),
        ),
        devices=(Device("/dev/nvidiactl", "c", 195, 255), Device("/dev/nvidia0", "c", 195, 0)),
        hooks=(LDCACHE,),
    )


def test_without_grants_the_pods_containers_share_one_directory() -> None:
    of = pod([HALF, OTHER])
    first, second = adjusted(of), adjusted(of, replace(MAIN, id="other", name="sidecar"))
    assert (first.key, first.shared) == ("pod-0f0f-11", True)
    stored = plans.decode(plans.encode(first), "pod-0f0f-11", "main")
    assert stored is not None and (stored.key, stored.files) == (first.key, first.files)
    assert (
        stored.preloads == first.preloads and first.preloads["/etc/ld.so.preload"] == "preload.main"
    )
    assert second.key == first.key
    lists = [
        {mount.destination: mount.source for mount in each.mounts}["/etc/ld.so.preload"]
        for each in (first, second)
    ]
    assert lists == [f"/run/gpuslice/{first.key}/preload.{name}" for name in ("main", "sidecar")]
    # Floor of the ratio; bytes unchanged; no gpu-core: all of it.
    assert first.shares == (
        Share(A.uuid, 0, 20 * GIB, 50),
        Share(B.uuid, 1, 3 * GIB, 100, uncapped=True),
    )
    assert dict(first.env)["NVIDIA_VISIBLE_DEVICES"] == f"{A.uuid},{B.uuid}"
    assert dict(first.env)["CUDA_DEVICE_MEMORY_LIMIT_1"] == str(3 * GIB)
    assert [d.path for d in first.devices] == ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"]


def test_the_environment_counts_gpus_as_the_driver_does() -> None:
    decision = adjusted(pod([HALF, OTHER], {"main": [grant(B, 2 * GIB, 7), grant(A, GIB, 5)]}))
    assert [share.uuid for share in decision.shares] == [B.uuid, A.uuid]
    env = dict(decision.env)
    assert env["NVIDIA_VISIBLE_DEVICES"] == f"{A.uuid},{B.uuid}"
    assert (env["CUDA_DEVICE_MEMORY_LIMIT_0"], env["CUDA_DEVICE_SM_LIMIT_0"]) == (str(GIB), "5")
    assert (env["CUDA_DEVICE_MEMORY_LIMIT_1"], env["CUDA_DEVICE_SM_LIMIT_1"]) == (
        str(2 * GIB),
        "7",
    )


def test_the_shares_of_an_allocation() -> None:
    assert adjusted(pod([entry({MEMORY: 7, RATIO: 50})])).shares[0].memory_bytes == 7
    by_minor = adjusted(pod([replace(OTHER, id=None)]))
    assert by_minor.shares == (Share(B.uuid, 1, 3 * GIB, 100, uncapped=True),)
    # An init container and a main one never run at once; the ledger counts those that do.
    of = pod([HALF], {name: [grant(A, 20 * GIB, 0)] for name in ("fetch", "main")})
    for name in ("fetch", "main"):
        decision = adjusted(of, replace(MAIN, name=name))
        assert decision.shares == (Share(A.uuid, 0, 20 * GIB, 0),)
        written = {v for k, v in decision.env if k.startswith(names.ENV_CORE_LIMIT)}
        assert written == {"1"}, "never as no limit"


FORWARDERS = {soname: f"/store/{soname}" for soname in names.DRIVER_SONAMES}
DRIVER_FILES = (
    Mount("/usr/lib/x/libcuda.so.1", "/host/libcuda.so.1", ("bind", "ro")),
    Mount("/usr/lib/x/libcuda.so.580.65.06", "/host/libcuda.so.580", ("bind", "ro")),
    Mount("/usr/lib/x/libnvidia-ml.so.1", "/host/nvml", ("bind", "ro", "nosuid")),
    Mount("/usr/lib/x/libcudadebugger.so.1", "/host/debugger", ("bind", "ro")),
)
STRICT_SPECS = Specs({A.uuid: device(A, common=Edits(mounts=DRIVER_FILES))})


def test_strict_mode_puts_forwarders_in_the_drivers_place() -> None:
    decision = adjusted(
        pod([HALF]), specs=STRICT_SPECS, paths=replace(PATHS, forwarders=FORWARDERS)
    )
    sources = {mount.destination: mount.source for mount in decision.mounts}
    assert len(sources) == len(decision.mounts)
    assert {place: source for place, source in sources.items() if "lib/x" in place} == {
        "/usr/lib/x/libcuda.so.1": "/store/libcuda.so.1",
        "/usr/lib/x/libcuda.so.580.65.06": "/store/libcuda.so.1",
        "/usr/lib/x/libnvidia-ml.so.1": "/store/libnvidia-ml.so.1",
        "/usr/lib/x/libcudadebugger.so.1": "/host/debugger",
    }
    assert sources["/.gpuslice/driver/libcuda.so.1"] == "/host/libcuda.so.580"
    assert sources["/.gpuslice/driver/libnvidia-ml.so.1"] == "/host/nvml"
    assert decision.files["/usr/lib/x/libcuda.so.580.65.06"] == "/store/libcuda.so.1"
    assert decision.files["/.gpuslice/driver/libnvidia-ml.so.1"] == "/host/nvml"
    assert sources[names.CONTAINER_PRELOAD]  # beside the preload, not instead of it
    order = [mount.destination for mount in decision.mounts]
    assert order.index(names.CONTAINER_DIR) < order.index("/.gpuslice/driver/libcuda.so.1")
    plain = adjusted(pod([HALF]), specs=STRICT_SPECS).mounts
    assert set(DRIVER_FILES) <= set(plain)
    assert not [m for m in plain if m.destination.startswith("/.gpuslice/driver")]
    over = replace(MAIN, mounts=(Mount("/usr/lib/x", "/volume"),))
    paths = replace(PATHS, forwarders=FORWARDERS)
    refused(Reason.MOUNT_COLLISION, pod([HALF]), over, STRICT_SPECS, paths)


@pytest.mark.parametrize("destination", ["/usr/local", "/usr/local/vgpu", "/usr"])
def test_the_visible_library_gives_way_to_a_volume(destination: str) -> None:
    container = replace(MAIN, mounts=(Mount(destination, "/volume"),))
    decision = adjusted(pod([HALF]), container)
    places = {mount.destination for mount in decision.mounts}
    assert names.CONTAINER_LIBRARY_VISIBLE not in places
    assert names.CONTAINER_PRELOAD in places


ENCODE = Mount("/usr/lib/libnvidia-encode.so.580", "/host/encode", ("bind", "ro"))
RENDER = Device("/dev/dri/renderD128", "c", 226, 128)
WHOLE_DRIVER = Specs(
    {
        A.uuid: CdiDevice(
            A.uuid,
            "/etc/cdi/nvidia.yaml",
            Edits(devices=(Device("/dev/nvidia0", "c", 195, 0), RENDER)),
            Edits(mounts=(LIBCUDA, ENCODE)),
        )
    }
)


def test_the_driver_is_held_to_what_the_operator_allows() -> None:
    asked = replace(MAIN, env=[f"{names.ENV_DRIVER_CAPABILITIES}=graphics,video"])
    paths = replace(PATHS, capabilities={"graphics"})
    decision = adjusted(pod([HALF]), asked, WHOLE_DRIVER, paths)
    assert dict(decision.env)[names.ENV_DRIVER_CAPABILITIES] == "compute,utility,graphics"
    assert decision.cut == ("video",)
    places = [each.destination for each in decision.mounts]
    assert LIBCUDA.destination in places and ENCODE.destination not in places
    assert [each.path for each in decision.devices] == ["/dev/nvidia0", RENDER.path]


QUANTITIES = st.one_of(
    st.integers(0, 120),
    st.integers(0, 100 * GIB),
    st.sampled_from(["1Gi", "50", "500m", "-1", "x", "", None, True, 1.5, "1e30", "\u0661"]),
)
ENTRIES = st.lists(
    st.fixed_dictionaries(
        {"minor": st.one_of(st.integers(-1, 3), st.just("0"))},
        optional={
            "id": st.sampled_from([A.uuid, B.uuid, "", "GPU-x", 5]),
            "resources": st.dictionaries(
                st.sampled_from([MEMORY, RATIO, CORE, "kubernetes.io/gpu-memory", "x"]), QUANTITIES
            ),
        },
    ),
    max_size=3,
)
LISTED = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.sampled_from([A.uuid, B.uuid, "GPU-x"]),
            "minor": st.integers(0, 2),
            "memory": st.integers(-1, 90 * GIB),
            "core": st.integers(-1, 120),
        }
    ),
    max_size=2,
)


@given(
    st.one_of(st.none(), ENTRIES, st.text()),
    st.one_of(st.none(), st.dictionaries(st.sampled_from(["main", "side"]), LISTED)),
    st.sampled_from([{}, LABEL, {names.LABEL_ISOLATION_PROVIDER: "mig"}]),
)
def test_never_more_than_the_gpu(
    entries: object, granted: object, labels: Mapping[str, str]
) -> None:
    annotations = {}
    if entries is not None:
        text = entries if isinstance(entries, str) else json.dumps({"gpu": entries})
        annotations[names.ANNOTATION_DEVICE_ALLOCATED] = text
    if granted is not None:
        annotations[names.ANNOTATION_GRANTS] = json.dumps({"v": 1, "containers": granted})
    of = Pod("uid", "ns", "pod", labels, annotations)
    total: dict[str, tuple[int, int]] = {}
    counted: set[str] = set()
    for name in ("main", "side"):
        decision = decide(of, Container(f"id-{name}", name))
        if isinstance(decision, Refusal):
            assert decision.text
            continue
        if decision is None:
            assert labels.get(names.LABEL_ISOLATION_PROVIDER) != "hami-core"
            continue
        if decision.key is None:
            assert dict(decision.env)["NVIDIA_VISIBLE_DEVICES"] == "void"
            assert not decision.devices
            continue
        if decision.key in counted:
            continue
        counted.add(decision.key)
        assert decision.shares
        for share in decision.shares:
            memory, core = total.get(share.uuid, (0, 0))
            total[share.uuid] = (memory + share.memory_bytes, core + share.core_percent)
    for gpu in GPUS:
        memory, core = total.get(gpu.uuid, (0, 0))
        assert memory <= gpu.memory_bytes
        assert core <= 100


@pytest.mark.parametrize(
    "data", ["", "{", "[]", "null", '{"v":2,"files":{}}', '{"v":1}', '{"v":1,"files":{"/a":1}}']
)
def test_a_plan_that_cannot_be_read(data: str) -> None:
    assert plans.decode(data.encode(), "c0", "main") is None
