"""The policy's table: one row per case, and the invariants that hold for every input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import allocation, grants, names
from contract.allocation import Allocation, DeviceEntry
from contract.grants import GpuGrant
from nri_plugin.policy import annotation_claims
from nri_plugin.policy.model import (
    Adjustment,
    CdiDevice,
    Container,
    Device,
    Edits,
    Gpu,
    Hook,
    HookStage,
    Mount,
    Paths,
    Pod,
    Share,
    Specs,
    Untouched,
)
from nri_plugin.policy.refusals import Reason, Refusal
from tests.nri_plugin import objects
from tests.support import GIB

A = Gpu("GPU-aaaaaaaa-0000-0000-0000-000000000000", 0, 40 * GIB)
B = Gpu("GPU-bbbbbbbb-0000-0000-0000-000000000000", 1, 80 * GIB)
GPUS = (A, B)
STORE = "/usr/local/vgpu/store/abc/libvgpu.so"
PATHS = Paths("/run/gpuslice", STORE)
LIBCUDA = Mount("/usr/lib/libcuda.so.1", "/host/libcuda.so.1", ("bind", "ro"))
LDCACHE = Hook(HookStage.CREATE_CONTAINER, "/usr/bin/nvidia-ctk", ("nvidia-ctk", "update-ldcache"))
COMMON = Edits(
    env=(("NVIDIA_VISIBLE_DEVICES", "void"), ("NVIDIA_CTK", "x")),
    devices=(Device("/dev/nvidiactl", "c", 195, 255),),
    mounts=(LIBCUDA,),
    hooks=(LDCACHE,),
)


def device(gpu: Gpu, **changes: Any) -> CdiDevice:
    own = Edits(devices=(Device(f"/dev/nvidia{gpu.minor}", "c", 195, gpu.minor),))
    return replace(CdiDevice(gpu.uuid, "/etc/cdi/nvidia.yaml", own, COMMON), **changes)


SPECS = Specs({gpu.uuid: device(gpu) for gpu in GPUS})
MAIN = Container("c0ffee", "main", env=("PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"))
HALF = DeviceEntry(0, {names.RESOURCE_MEMORY_RATIO: 50, names.RESOURCE_CORE: 50}, A.uuid)
OTHER = DeviceEntry(1, {names.RESOURCE_MEMORY: 3 * GIB}, B.uuid)
LABEL = {names.LABEL_ISOLATION_PROVIDER: "HAMi-core"}


def pod(
    entries: Sequence[DeviceEntry] | None = None,
    granted: Mapping[str, Sequence[GpuGrant]] | None = None,
    *,
    labels: Mapping[str, str] = LABEL,
    allocated: str | None = None,
    granted_text: str | None = None,
    uid: str = "0f0f-11",
) -> Pod:
    annotations = {}
    if entries is not None:
        allocated = allocation.encode(Allocation({"gpu": entries}))
    if allocated is not None:
        annotations[names.ANNOTATION_DEVICE_ALLOCATED] = allocated
    if granted is not None:
        granted_text = grants.encode(granted)
    if granted_text is not None:
        annotations[names.ANNOTATION_GRANTS] = granted_text
    return Pod(uid, "team", "train", labels, annotations)


def grant(gpu: Gpu, memory: int, core: int = 50) -> GpuGrant:
    return GpuGrant(gpu.uuid, gpu.minor, memory, core)


def decide(
    of: Pod,
    container: Container = MAIN,
    specs: Specs = SPECS,
    paths: Paths = PATHS,
    gpus: Sequence[Gpu] = GPUS,
) -> objects.Result:
    return objects.decide(of, container, gpus, specs, paths)


def adjusted(*arguments: Any, **options: Any) -> Adjustment:
    decision = decide(*arguments, **options)
    assert isinstance(decision, Adjustment)
    return decision


def refused(reason: Reason, *arguments: Any, **options: Any) -> Refusal:
    decision = decide(*arguments, **options)
    assert isinstance(decision, Refusal) and decision.reason is reason
    return decision


def entry(resources: Mapping[str, int], uuid: str | None = A.uuid, minor: int = 0) -> DeviceEntry:
    return DeviceEntry(minor, resources, uuid)


MEMORY, RATIO, CORE = names.RESOURCE_MEMORY, names.RESOURCE_MEMORY_RATIO, names.RESOURCE_CORE

DEAD = GpuGrant("GPU-dead", 9, 1, 1)

REFUSALS: Mapping[str, tuple[Pod, Reason, str]] = {
    "unknown provider": (
        pod([HALF], labels={names.LABEL_ISOLATION_PROVIDER: "hami"}),
        Reason.PROVIDER_UNKNOWN,
        "invalid value 'hami': must be 'hami-core'",
    ),
    "potatoes": (
        pod(
            allocated=json.dumps({"gpu": [{"minor": 0, "resources": {MEMORY: "12 potatoes"}}]}),
        ),
        Reason.ALLOCATION_MALFORMED,
        "gpu[0].resources.koordinator.sh/gpu-memory: invalid value '12 potatoes': must be a"
        " quantity",
    ),
    "allocation is no JSON": (pod(allocated="{"), Reason.ALLOCATION_MALFORMED, "not JSON"),
    "allocation is no object": (
        pod(allocated="[]"),
        Reason.ALLOCATION_MALFORMED,
        "must be an object",
    ),
    "allocation with an unreadable GPU, no label": (
        pod(allocated='{"gpu":[1]}', labels={}),
        Reason.ALLOCATION_MALFORMED,
        "gpu[0]: invalid type int",
    ),
    "allocation is no JSON, grants and no label": (
        pod(None, {"main": [grant(A, 1)]}, allocated="{", labels={}),
        Reason.ALLOCATION_MALFORMED,
        "not JSON",
    ),
    "empty allocation, label": (pod(allocated=""), Reason.ALLOCATION_MALFORMED, "not JSON"),
    "too many GPUs": (
        pod([HALF] * 17),
        Reason.TOO_MANY_GPUS,
        "invalid value 17 GPUs: must be at most 16",
    ),
    "GPU unknown by id": (
        pod([entry({MEMORY: 1}, "GPU-nowhere")]),
        Reason.GPU_UNKNOWN,
        f"gpu[0]: invalid value GPU-nowhere: must be a GPU of this node ({A.uuid} as minor 0",
    ),
    "GPU unknown by minor": (
        pod([entry({MEMORY: 1}, None, 7)]),
        Reason.GPU_UNKNOWN,
        "GPU with minor 7",
    ),
    "id and minor disagree": (
        pod([entry({MEMORY: 1}, A.uuid, 1)]),
        Reason.GPU_MISMATCH,
        f"gpu[0].minor: invalid value 1: must be 0, the minor of {A.uuid}",
    ),
    "GPU twice": (
        pod([HALF, replace(HALF, id=None)]),
        Reason.GPU_TWICE,
        f"gpu[1].id: duplicate value {A.uuid}",
    ),
    "no memory": (
        pod([entry({CORE: 50})]),
        Reason.MEMORY_MISSING,
        "gpu[0].resources: required value",
    ),
    "no resources": (pod([entry({})]), Reason.MEMORY_MISSING, "required value"),
    "memory 0": (pod([entry({MEMORY: 0})]), Reason.MEMORY_OUT_OF_RANGE, "0 bytes"),
    "ratio 0": (pod([entry({RATIO: 0})]), Reason.MEMORY_OUT_OF_RANGE, "0 bytes"),
    "ratio 101": (pod([entry({RATIO: 101})]), Reason.MEMORY_OUT_OF_RANGE, "the whole GPU"),
    "memory over the GPU": (
        pod([entry({MEMORY: 40 * GIB + 1})]),
        Reason.MEMORY_OUT_OF_RANGE,
        f"{40 * GIB + 1} bytes of memory: must be 1 to {40 * GIB}",
    ),
    "core 101": (
        pod([entry({MEMORY: 1, CORE: 101})]),
        Reason.CORE_OUT_OF_RANGE,
        "invalid value 101 percent of core: must be 0 to 100",
    ),
    "grants alone": (
        pod(granted={"main": [grant(A, 1)]}, labels={}),
        Reason.GRANTS_ALONE,
        "must be unset where",
    ),
    "grants malformed": (
        pod([HALF], granted_text='{"v":2}'),
        Reason.GRANTS_MALFORMED,
        "v: invalid value 2: must be 1",
    ),
    "grant of a GPU outside the allocation": (
        pod([HALF], {"main": [grant(B, 1)]}),
        Reason.GRANT_NOT_ALLOCATED,
        f"containers.main[0]: invalid value {B.uuid} as minor 1: must be a GPU of the pod's",
    ),
    "grant with another minor": (
        pod([HALF], {"main": [GpuGrant(A.uuid, 1, 1, 1)]}),
        Reason.GRANT_NOT_ALLOCATED,
        "as minor 1",
    ),
    "a grant of more memory than the allocation": (
        pod([HALF], {"main": [grant(A, 20 * GIB + 1)]}),
        Reason.GRANT_OVER_ALLOCATION,
        f"containers.main[0].memory: invalid value {20 * GIB + 1}: must be at most {20 * GIB}",
    ),
    "a grant of more core than the allocation": (
        pod([HALF], {"main": [grant(A, 1, 51)]}),
        Reason.GRANT_OVER_ALLOCATION,
        f"core: invalid value 51: must be at most 50, the pod's allocation of {A.uuid}",
    ),
    "pod uid that is a path": (pod([HALF], uid="../x"), Reason.IDENTITY_INVALID, "'../x'"),
    "pod without uid": (pod([HALF], uid=""), Reason.IDENTITY_INVALID, "pod uid: invalid value ''"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused(case: str) -> None:
    of, reason, text = REFUSALS[case]
    decision = refused(reason, of)
    assert text in decision.text


def test_containers_may_each_have_all_of_the_allocation() -> None:
    """An init container and a main one never run at once; the ledger counts those that do."""
    of = pod([HALF], {name: [grant(A, 20 * GIB)] for name in ("fetch", "main")})
    for name in ("fetch", "main"):
        decision = adjusted(of, replace(MAIN, name=name))
        assert [share.memory_bytes for share in decision.shares] == [20 * GIB]
        assert decision.allocated == decision.shares


def test_every_container_of_a_malformed_pod_is_refused() -> None:
    for of in (pod(allocated="{"), pod([HALF], granted_text="{")):
        assert isinstance(decide(of, replace(MAIN, name="sidecar")), Refusal)


SIDECARS: Mapping[str, tuple[Container, Specs, Paths, Reason, str]] = {
    "library missing": (
        MAIN,
        SPECS,
        Paths("/run/gpuslice", None, "/opt/x: No such file or directory"),
        Reason.LIBRARY_MISSING,
        "the library is missing on this node: /opt/x: No such file",
    ),
    "no CDI spec": (MAIN, Specs(), PATHS, Reason.CDI_MISSING, f"{names.CDI_KIND}={A.uuid}"),
    "unreadable CDI spec": (
        MAIN,
        Specs({}, ("/etc/cdi/x.json: no",)),
        PATHS,
        Reason.CDI_MISSING,
        "; unreadable: /etc/cdi/x.json: no",
    ),
    "unusable CDI device": (
        MAIN,
        Specs({A.uuid: device(A, problem="/dev/nvidia0: gone")}),
        PATHS,
        Reason.CDI_UNUSABLE,
        "/etc/cdi/nvidia.yaml: /dev/nvidia0: gone",
    ),
    "a CDI spec that mounts over ours": (
        MAIN,
        Specs({A.uuid: device(A, own=Edits(mounts=(Mount("/etc/ld.so.preload", "/x"),)))}),
        PATHS,
        Reason.MOUNT_COLLISION,
        "/etc/ld.so.preload",
    ),
    "strict, and no file of NVML": (
        MAIN,
        SPECS,
        replace(PATHS, forwarders=dict.fromkeys(names.DRIVER_SONAMES, "/store/x")),
        Reason.NOT_FORWARDED,
        "libnvidia-ml.so.1",
    ),
    "a key twice": (
        replace(MAIN, env=("NVIDIA_VISIBLE_DEVICES=all", "X=", "NVIDIA_VISIBLE_DEVICES=all")),
        SPECS,
        PATHS,
        Reason.ENV_TWICE,
        "NVIDIA_VISIBLE_DEVICES: duplicate value (2 times",
    ),
    "a key of the CDI spec twice": (
        replace(MAIN, env=("NVIDIA_CTK=1", "NVIDIA_CTK")),
        SPECS,
        PATHS,
        Reason.ENV_TWICE,
        "NVIDIA_CTK",
    ),
}


@pytest.mark.parametrize("case", SIDECARS)
def test_refused_on_this_host(case: str) -> None:
    container, specs, paths, reason, text = SIDECARS[case]
    decision = refused(reason, pod([HALF]), container, specs, paths)
    assert text in decision.text


@pytest.mark.parametrize(
    ("destination", "ours"),
    [
        ("/", "/.gpuslice"),
        ("/.gpuslice", "/.gpuslice"),
        ("/.gpuslice/", "/.gpuslice"),
        (".gpuslice", "/.gpuslice"),
        ("//.gpuslice", "/.gpuslice"),
        ("/x/../.gpuslice/region", "/.gpuslice"),
        ("/.gpuslice/grant", "/.gpuslice"),
        ("/etc", "/etc/ld.so.preload"),
        ("/etc/./ld.so.preload", "/etc/ld.so.preload"),
        ("/etc/ld.so.preload/x", "/etc/ld.so.preload"),
    ],
)
def test_a_mount_in_our_way_is_refused(destination: str, ours: str) -> None:
    container = replace(MAIN, mounts=(Mount("/data", "/d"), Mount(destination, "/volume")))
    decision = refused(Reason.MOUNT_COLLISION, pod([HALF]), container)
    assert decision.fields == {"mount": destination, "ours": ours}


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
    assert sources[names.CONTAINER_PRELOAD]  # beside the preload, not instead of it
    order = [mount.destination for mount in decision.mounts]
    assert order.index(names.CONTAINER_DIR) < order.index("/.gpuslice/driver/libcuda.so.1")


def test_without_strict_mode_the_driver_is_mounted_as_in_the_spec() -> None:
    decision = adjusted(pod([HALF]), specs=STRICT_SPECS)
    assert set(DRIVER_FILES) <= set(decision.mounts)
    assert not [m for m in decision.mounts if m.destination.startswith("/.gpuslice/driver")]


def test_strict_mode_refuses_a_volume_over_the_drivers_place() -> None:
    container = replace(MAIN, mounts=(Mount("/usr/lib/x", "/volume"),))
    paths = replace(PATHS, forwarders=FORWARDERS)
    refused(Reason.MOUNT_COLLISION, pod([HALF]), container, STRICT_SPECS, paths)


@pytest.mark.parametrize("destination", ["/etc/hosts", "/.gpuslice2", "/etcetera", "/proc"])
def test_a_mount_elsewhere_is_allowed(destination: str) -> None:
    container = replace(MAIN, mounts=(Mount(destination, "/volume"),))
    assert isinstance(decide(pod([HALF]), container), Adjustment)


@pytest.mark.parametrize("destination", ["/usr/local", "/usr/local/vgpu", "/usr"])
def test_the_visible_library_gives_way_to_a_volume(destination: str) -> None:
    container = replace(MAIN, mounts=(Mount(destination, "/volume"),))
    decision = adjusted(pod([HALF]), container)
    places = {mount.destination for mount in decision.mounts}
    assert names.CONTAINER_LIBRARY_VISIBLE not in places
    assert names.CONTAINER_PRELOAD in places


@pytest.mark.parametrize(
    "of",
    [
        pod(labels={}),
        pod(labels={"app": "web"}),
        pod([], labels={}),
        pod(allocated='{"rdma":[{"minor":0,"resources":null}]}', labels={}),
        pod(allocated='{"rdma":{"of":"tomorrow"}}', labels={}),
        pod(allocated='{"gpu":null,"rdma":[{"minor":0}]}', labels={}),
        pod(labels={names.LABEL_ISOLATION_PROVIDER: "another"}),
    ],
)
def test_untouched(of: Pod) -> None:
    assert decide(of) == Untouched()


@pytest.mark.parametrize("text", ["{", "", "[]", "null"])
@pytest.mark.parametrize("labels", [{}, {names.LABEL_ISOLATION_PROVIDER: "another"}])
def test_an_unreadable_allocation_of_a_pod_that_asks_for_no_share_is_no_gpu(
    text: str, labels: dict[str, str]
) -> None:
    of = pod(allocated=text, labels=labels)
    decision = adjusted(of)
    assert dict(decision.env) == {names.ENV_VISIBLE_DEVICES: names.VISIBLE_DEVICES_NONE}
    assert not decision.devices and not decision.mounts
    assert decision.warning.startswith(f"annotation {names.ANNOTATION_DEVICE_ALLOCATED}: ")
    assert decision.warning.endswith(": it starts without a GPU")
    assert not annotation_claims.has_shares(of)


def test_which_pods_may_claim_a_gpu() -> None:
    def may_claim(of: Pod) -> bool:
        return annotation_claims.may_claim(of.labels, of.annotations)

    assert not may_claim(pod(labels={"app": "web"}))
    assert may_claim(pod())
    assert may_claim(pod([HALF], labels={}))
    assert may_claim(pod(granted_text="", labels={}))


def test_the_adjustment_of_a_grant_exactly() -> None:
    decision = decide(pod([HALF], {"main": [grant(A, 5 * GIB, 30)]}))
    run = "/run/gpuslice/c0ffee"
    assert decision == Adjustment(
        key="c0ffee",
        shared=False,
        shares=(Share(A.uuid, 0, 5 * GIB, 30),),
        allocated=(Share(A.uuid, 0, 20 * GIB, 50),),
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
            Mount(
                "/.gpuslice/region",
                f"{run}/region",
                ("bind", "rw", "nosuid", "nodev", "noexec"),
            ),
            Mount(
                "/etc/ld.so.preload",
                f"{run}/preload",
                ("bind", "ro", "nosuid", "nodev", "noexec"),
            ),
            Mount(
                "/etc/ld-nix.so.preload",
                f"{run}/preload-nix",
                ("bind", "ro", "nosuid", "nodev", "noexec"),
            ),
            Mount("/usr/local/vgpu/libvgpu.so", STORE, ("bind", "ro", "nosuid", "nodev")),
        ),
        devices=(Device("/dev/nvidiactl", "c", 195, 255), Device("/dev/nvidia0", "c", 195, 0)),
        hooks=(LDCACHE,),
    )


def test_without_grants_the_pods_containers_share_one_directory() -> None:
    of = pod([HALF, OTHER])
    first = decide(of)
    second = decide(of, replace(MAIN, id="other", name="sidecar"))
    assert isinstance(first, Adjustment)
    assert isinstance(second, Adjustment)
    assert (first.key, first.shared) == ("pod-0f0f-11", True)
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


def test_the_grant_refuses_variables_of_no_dialect() -> None:
    granted = {"main": [grant(A, GIB)], "beside": [grant(A, GIB)]}
    variables = {"main": {"LD_PRELOAD": "/x"}, "beside": {"VOLCANO_GPU_ALLOCATED": "1024"}}
    of = pod([HALF], granted_text=grants.encode(granted, variables))
    refusal = refused(Reason.GRANTS_MALFORMED, of)
    assert "env.main: invalid variable LD_PRELOAD: must be one of GPU_PORTION" in refusal.text
    beside = adjusted(of, replace(MAIN, name="beside"))
    assert dict(beside.env)["VOLCANO_GPU_ALLOCATED"] == "1024"
    assert annotation_claims.has_shares(of)


def test_no_percent_is_never_written_as_no_limit() -> None:
    decision = adjusted(pod([HALF], {"main": [grant(A, 1, 0)]}))
    assert decision.shares[0].core_percent == 0
    written = {v for k, v in decision.env if k.startswith(names.ENV_CORE_LIMIT)}
    assert written == {"1"}


def test_a_missing_id_means_the_minor() -> None:
    decision = adjusted(pod([replace(OTHER, id=None)]))
    assert decision.shares == (Share(B.uuid, 1, 3 * GIB, 100, uncapped=True),)


def test_memory_in_bytes_outranks_the_ratio() -> None:
    decision = adjusted(pod([entry({MEMORY: 7, RATIO: 50})]))
    assert decision.shares[0].memory_bytes == 7


SIDE = replace(MAIN, name="side")
RESTLESS: Mapping[str, tuple[Pod, Container]] = {
    "a GPU that failed": (pod([entry({MEMORY: 1}, "GPU-dead", 9)], {"main": [DEAD]}), SIDE),
    "a GPU without a spec": (pod([HALF], {"main": [grant(A, 1)]}), SIDE),
    "a grant that is too much": (pod([HALF], {"main": [grant(A, 41 * GIB)]}), SIDE),
    "a variable twice": (
        pod([HALF], {"main": [grant(A, 1)]}),
        replace(SIDE, env=("NVIDIA_VISIBLE_DEVICES=all",) * 2),
    ),
    "the host's files": (
        pod([HALF], {"main": [grant(A, 1)]}),
        replace(SIDE, mounts=(Mount("/host", "/"), Mount("/x", "/run/gpuslice"))),
    ),
    "every device": (pod([HALF], {"main": [grant(A, 1)]}), replace(SIDE, privileged=True)),
}


@pytest.mark.parametrize("case", RESTLESS)
def test_a_container_without_a_grant_starts_without_a_gpu(case: str) -> None:
    of, container = RESTLESS[case]
    decision = decide(of, container, specs=Specs())
    assert decision == Adjustment(env=(("NVIDIA_VISIBLE_DEVICES", "void"),))


def test_an_adjustment_without_a_gpu_warns_with_the_reason() -> None:
    naming = replace(SIDE, env=("NVIDIA_VISIBLE_DEVICES=0",))
    for of, container, why in (
        (pod([HALF], {"main": [grant(A, 1)]}), naming, "NVIDIA_VISIBLE_DEVICES='0' names GPUs"),
        (pod(), MAIN, "has no GPU allocation"),
        (pod(allocated='{"rdma":[]}'), MAIN, "has no GPU allocation"),
    ):
        decision = decide(of, container)
        assert isinstance(decision, Adjustment) and decision.key is None
        assert why in decision.warning


def test_containers_with_a_share_of_a_failed_gpu_are_refused() -> None:
    of = pod([HALF, entry({MEMORY: 1}, "GPU-dead", 9)], {"main": [grant(A, 1)], "side": [DEAD]})
    assert isinstance(decide(of), Adjustment)
    refused = decide(of, SIDE)
    assert isinstance(refused, Refusal) and refused.reason is Reason.GPU_UNKNOWN


GIVEN = replace(MAIN, devices=(Device("/dev/nvidia0", "c", 195, 0),))
SHOWING = replace(MAIN, mounts=(Mount("/x", "/run/gpuslice"),))
BROUGHT: Mapping[str, tuple[Container, Mapping[str, Reason | None]]] = {
    "a GPU already": (GIVEN, {"main": Reason.GPU_GIVEN, "side": None}),
    "everybody's limits": (SHOWING, {"main": Reason.HOST_VOLUME}),
    "every device": (replace(MAIN, privileged=True), {"main": Reason.PRIVILEGED}),
}


@pytest.mark.parametrize("case", BROUGHT)
def test_the_preconditions_are_checked_of_containers_with_a_grant(case: str) -> None:
    """preconditions.py decides what of it is refused; here, which container is checked. None: left
    unchanged, and reported."""
    container, expected = BROUGHT[case]
    of = pod([HALF], {"main": [grant(A, 1)]})
    for name, reason in expected.items():
        decision = decide(of, replace(container, name=name))
        if reason is None:
            assert decision == Untouched("device /dev/nvidia0")
        else:
            assert isinstance(decision, Refusal)
            assert decision.reason is reason


@pytest.mark.parametrize(
    ("own", "what"),
    [
        (Edits(mounts=(LIBCUDA._replace(source="/other"),)), "mount /usr/lib/libcuda.so.1"),
        (Edits(env=(("NVIDIA_CTK", "y"),)), "environment NVIDIA_CTK"),
        (Edits(devices=(Device("/dev/nvidiactl", "c", 1, 3),)), "device /dev/nvidiactl"),
    ],
)
def test_specs_that_disagree_are_refused(own: Edits, what: str) -> None:
    specs = Specs({A.uuid: device(A), B.uuid: device(B, own=own)})
    decision = refused(Reason.CDI_CONFLICT, pod([HALF, OTHER]), specs=specs)
    assert what in decision.text


def test_a_container_name_that_is_a_path_is_refused_where_it_names_a_file() -> None:
    refused(Reason.IDENTITY_INVALID, pod([HALF]), replace(MAIN, name="../x"))


def test_a_container_id_that_is_a_path_is_refused() -> None:
    refused(Reason.IDENTITY_INVALID, pod([HALF], {"main": [grant(A, 1)]}), replace(MAIN, id="a/b"))


# --- for every input ------------------------------------------------------------------------------

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
        if isinstance(decision, Untouched):
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
