"""The policy's refusals, reason by reason: one row per case."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from contract import grants, names
from contract.grants import GpuGrant
from nri_plugin.policy import annotation_claims
from nri_plugin.policy.model import (
    Adjustment,
    Container,
    Device,
    Edits,
    Mount,
    Paths,
    Pod,
    Specs,
    Untouched,
)
from nri_plugin.policy.refusals import Reason, Refusal
from tests.nri_plugin.policy.pod_policy_scene import (
    CORE,
    FAILED,
    HALF,
    LIBCUDA,
    MAIN,
    MEMORY,
    OTHER,
    PATHS,
    RATIO,
    SIDE,
    SPECS,
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


def test_the_grant_refuses_variables_of_no_dialect() -> None:
    granted = {"main": [grant(A, GIB)], "beside": [grant(A, GIB)]}
    variables = {"main": {"LD_PRELOAD": "/x"}, "beside": {"VOLCANO_GPU_ALLOCATED": "1024"}}
    of = pod([HALF], granted_text=grants.encode(granted, variables))
    refusal = refused(Reason.GRANTS_MALFORMED, of)
    assert "env.main: invalid variable LD_PRELOAD: must be one of GPU_PORTION" in refusal.text
    beside = adjusted(of, replace(MAIN, name="beside"))
    assert dict(beside.env)["VOLCANO_GPU_ALLOCATED"] == "1024"
    assert annotation_claims.has_shares(of)


def test_containers_with_a_share_of_a_failed_gpu_are_refused() -> None:
    of = pod([HALF, entry({MEMORY: 1}, "GPU-failed", 9)], {"main": [grant(A, 1)], "side": [FAILED]})
    assert isinstance(decide(of), Adjustment)
    refused = decide(of, SIDE)
    assert isinstance(refused, Refusal) and refused.reason is Reason.GPU_UNKNOWN


GIVEN = replace(MAIN, devices=(Device("/dev/nvidia0", "c", 195, 0),))
SHOWING = replace(MAIN, mounts=(Mount("/x", "/run/gpuslice"),))
BROUGHT: Mapping[str, tuple[Container, Mapping[str, Reason | None]]] = {
    "a GPU already": (GIVEN, {"main": Reason.GPU_GIVEN, "side": None}),
    "limits of all containers": (SHOWING, {"main": Reason.HOST_VOLUME}),
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
