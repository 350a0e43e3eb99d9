"""The checks that refuse a container a share: one row for each objection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract import grants, names
from gpuslice.contract.grants import GpuGrant
from nri_plugin.policy import annotation_claims, checks
from nri_plugin.policy.model import Container, Device, Edits, Mount, Paths, Pod, Specs
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.refusals import Reason, Refusal
from tests.nri_plugin import objects
from tests.nri_plugin.policy.plan_scene import (
    CORE,
    FAILED,
    HALF,
    LABEL,
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

RUN = "/run/gpuslice"
NVIDIA = Device("/dev/nvidia0", "c", 195, 0)


@dataclass(frozen=True)
class Case:
    """A container that is refused, and a part of the text."""

    reason: Reason
    text: str
    pod: Pod = field(default_factory=lambda: pod([HALF]))
    container: Container = MAIN
    specs: Specs = SPECS
    paths: Paths = PATHS


def allocated(gpu: object, labels: Mapping[str, str] = LABEL) -> Pod:
    return pod(allocated=json.dumps({"gpu": gpu}), labels=labels)


def env(*lines: str) -> Container:
    return replace(MAIN, env=lines)


def volume(source: str, *options: str, at: str = "/x") -> Container:
    return replace(MAIN, mounts=(Mount("/data", "/d"), Mount(at, source, options)))


def of_a(**changes: object) -> Specs:
    return Specs({A.uuid: device(A, **changes), B.uuid: device(B)})


MALFORMED, RANGE = Reason.ALLOCATION_MALFORMED, Reason.MEMORY_OUT_OF_RANGE
UNREADABLE = Specs({}, ("/etc/cdi/x.json: no",))
NO_FORWARDER = replace(PATHS, forwarders=dict.fromkeys(names.DRIVER_SONAMES, "/store/x"))

CLAIMS: Final[Mapping[str, Case]] = {
    "an unknown provider": Case(
        Reason.PROVIDER_UNKNOWN,
        "invalid value 'hami': must be 'hami-core'",
        pod([HALF], labels={names.LABEL_ISOLATION_PROVIDER: "hami"}),
    ),
    "potatoes": Case(
        MALFORMED,
        "gpu[0].resources.koordinator.sh/gpu-memory: invalid value '12 potatoes': must be a"
        " quantity",
        allocated([{"minor": 0, "resources": {MEMORY: "12 potatoes"}}]),
    ),
    "no JSON": Case(MALFORMED, "not JSON", pod(allocated="{")),
    "no object": Case(MALFORMED, "must be an object", pod(allocated="[]")),
    "an unreadable GPU, no label": Case(
        MALFORMED, "gpu[0]: invalid type int", allocated([1], labels={})
    ),
    "no JSON, grants and no label": Case(
        MALFORMED, "not JSON", pod(None, {"main": [grant(A, 1)]}, allocated="{", labels={})
    ),
    "an empty allocation": Case(MALFORMED, "not JSON", pod(allocated="")),
    "17 GPUs": Case(
        Reason.TOO_MANY_GPUS, "invalid value 17 GPUs: must be at most 16", pod([HALF] * 17)
    ),
    "16 GPUs": Case(Reason.GPU_TWICE, "gpu[1].id: duplicate value", pod([HALF] * 16)),
    "a GPU unknown by id": Case(
        Reason.GPU_UNKNOWN,
        f"gpu[0]: invalid value GPU-nowhere: must be a GPU of this node ({A.uuid} as minor 0",
        pod([entry({MEMORY: 1}, "GPU-nowhere")]),
    ),
    "a GPU unknown by minor": Case(
        Reason.GPU_UNKNOWN, "GPU with minor 7", pod([entry({MEMORY: 1}, None, 7)])
    ),
    "id and minor disagree": Case(
        Reason.GPU_MISMATCH,
        f"gpu[0].minor: invalid value 1: must be 0, the minor of {A.uuid}",
        pod([entry({MEMORY: 1}, A.uuid, 1)]),
    ),
    "a GPU twice": Case(
        Reason.GPU_TWICE,
        f"gpu[1].id: duplicate value {A.uuid}",
        pod([HALF, replace(HALF, id=None)]),
    ),
    "no memory": Case(
        Reason.MEMORY_MISSING, "gpu[0].resources: required value", pod([entry({CORE: 50})])
    ),
    "no resources": Case(Reason.MEMORY_MISSING, "required value", pod([entry({})])),
    "memory 0": Case(RANGE, "0 bytes", pod([entry({MEMORY: 0})])),
    "ratio 0": Case(RANGE, "0 bytes", pod([entry({RATIO: 0})])),
    "ratio 101": Case(RANGE, "the whole GPU", pod([entry({RATIO: 101})])),
    "more memory than the GPU has": Case(
        RANGE,
        f"{40 * GIB + 1} bytes of memory: must be 1 to {40 * GIB}",
        pod([entry({MEMORY: 40 * GIB + 1})]),
    ),
    "core 101": Case(
        Reason.CORE_OUT_OF_RANGE,
        "invalid value 101 percent of core: must be 0 to 100",
        pod([entry({MEMORY: 1, CORE: 101})]),
    ),
    "grants alone": Case(
        Reason.GRANTS_ALONE, "must be unset where", pod(granted={"main": [grant(A, 1)]}, labels={})
    ),
    "grants of another version": Case(
        Reason.GRANTS_MALFORMED,
        "v: invalid value 2: must be 1",
        pod([HALF], granted_text='{"v":2}'),
    ),
    "a grant of a GPU outside the allocation": Case(
        Reason.GRANT_NOT_ALLOCATED,
        f"containers.main[0]: invalid value {B.uuid} as minor 1: must be a GPU of the pod's",
        pod([HALF], {"main": [grant(B, 1)]}),
    ),
    "a grant with another minor": Case(
        Reason.GRANT_NOT_ALLOCATED,
        "as minor 1",
        pod([HALF], {"main": [GpuGrant(A.uuid, 1, 1, 1)]}),
    ),
    "a grant of more memory than the allocation": Case(
        Reason.GRANT_OVER_ALLOCATION,
        f"containers.main[0].memory: invalid value {20 * GIB + 1}: must be at most {20 * GIB}",
        pod([HALF], {"main": [grant(A, 20 * GIB + 1)]}),
    ),
    "a grant of more core than the allocation": Case(
        Reason.GRANT_OVER_ALLOCATION,
        f"core: invalid value 51: must be at most 50, the pod's allocation of {A.uuid}",
        pod([HALF], {"main": [grant(A, 1, 51)]}),
    ),
    "a pod UID that is a path": Case(Reason.IDENTITY_INVALID, "'../x'", pod([HALF], uid="../x")),
    "a pod without UID": Case(
        Reason.IDENTITY_INVALID, "pod uid: invalid value ''", pod([HALF], uid="")
    ),
    "a container name that is a path": Case(
        Reason.IDENTITY_INVALID, "'../x'", container=replace(MAIN, name="../x")
    ),
    "a container id that is a path": Case(
        Reason.IDENTITY_INVALID,
        "'a/b'",
        pod([HALF], {"main": [grant(A, 1)]}),
        replace(MAIN, id="a/b"),
    ),
}

CONTAINERS: Final[Mapping[str, Case]] = {
    "another container's files": Case(
        Reason.RESTORED, f"mount /x: invalid value {RUN}/old: ", container=volume(f"{RUN}/old")
    ),
    "below them, by a link that every host has": Case(
        Reason.RESTORED, "/var/run/gpuslice/a", container=volume("/var/run/gpuslice/a")
    ),
    "files of all containers": Case(Reason.HOST_VOLUME, f"value {RUN}: ", container=volume(RUN)),
    "above them": Case(Reason.HOST_VOLUME, "/run", container=volume("/run", "rbind", "ro")),
    "above them, in other words": Case(
        Reason.HOST_VOLUME, "//run/../run/.", container=volume("//run/../run/.")
    ),
    "them, by a link that every host has": Case(
        Reason.HOST_VOLUME, "/var/run/gpuslice", container=volume("/var/run/gpuslice")
    ),
    "the host": Case(Reason.HOST_VOLUME, "mount /x", container=volume("/", "rbind", "ro")),
    "the library's store": Case(
        Reason.HOST_VOLUME, "/lib", container=volume("/lib/store"), paths=Paths(RUN, "/lib/store/x")
    ),
    "another kernel": Case(
        Reason.HANDLER_UNKNOWN, "gvisor", replace(pod([HALF]), runtime_handler="gvisor")
    ),
    "every device": Case(Reason.PRIVILEGED, "privileged", container=replace(MAIN, privileged=True)),
    "an auditor, at the second mention": Case(
        Reason.ENV_AUDITS, "must be unset", container=env("LD_AUDIT=", "LD_AUDIT=/tmp/audit.so")
    ),
    "libc before ours, after a space": Case(
        Reason.ENV_PRELOADS,
        "must not name libc.so.6",
        container=env("LD_PRELOAD=/lib/mine.so libc.so.6"),
    ),
    "the driver before ours, by its path": Case(
        Reason.ENV_PRELOADS,
        "must not name /usr/lib/x86_64-linux-gnu/libcuda.so.1",
        container=env("LD_PRELOAD=:/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
    ),
    "a GPU's node": Case(
        Reason.GPU_GIVEN, "device /dev/nvidia0", container=replace(MAIN, devices=(NVIDIA,))
    ),
    "a GPU's node, renamed": Case(
        Reason.GPU_GIVEN,
        "device /dev/null2",
        container=replace(MAIN, devices=(Device("/dev/null2", "c", 195, 3),)),
    ),
    "a GPU's node as a volume": Case(
        Reason.GPU_GIVEN, "mount /x", container=volume("/dev//nvidia1")
    ),
    "a request to NVIDIA's runtime": Case(
        Reason.GPU_GIVEN,
        "mount /var/run/nvidia-container-devices/0",
        container=volume("/dev/null", at="/var/run/nvidia-container-devices/0"),
    ),
    "a CDI device": Case(
        Reason.GPU_GIVEN,
        "CDI device nvidia.com/gpu=0",
        container=replace(MAIN, cdi_names=("nvidia.com/gpu=0", "k8s.gpu.nvidia.com/device=0")),
    ),
    "no library": Case(
        Reason.LIBRARY_MISSING,
        "the library is missing on this node: /opt/x: No such file",
        container=volume("/usr"),
        paths=Paths(RUN, None, "/opt/x: No such file or directory"),
    ),
    "no CDI spec": Case(Reason.CDI_MISSING, f"{names.CDI_KIND}={A.uuid}", specs=Specs()),
    "an unreadable CDI spec": Case(
        Reason.CDI_MISSING, "; unreadable: /etc/cdi/x.json: no", specs=UNREADABLE
    ),
    "an unusable CDI device": Case(
        Reason.CDI_UNUSABLE,
        "/etc/cdi/nvidia.yaml: /dev/nvidia0: gone",
        specs=of_a(problem="/dev/nvidia0: gone"),
    ),
    "specs with two sources of a mount": Case(
        Reason.CDI_CONFLICT,
        "mount /usr/lib/libcuda.so.1",
        pod([HALF, OTHER]),
        specs=of_a(own=Edits(mounts=(LIBCUDA._replace(source="/other"),))),
    ),
    "specs with two values of a variable": Case(
        Reason.CDI_CONFLICT,
        "environment NVIDIA_CTK",
        pod([HALF, OTHER]),
        specs=of_a(own=Edits(env=(("NVIDIA_CTK", "y"),))),
    ),
    "specs with two nodes of a device": Case(
        Reason.CDI_CONFLICT,
        "device /dev/nvidiactl",
        pod([HALF, OTHER]),
        specs=of_a(own=Edits(devices=(Device("/dev/nvidiactl", "c", 1, 3),))),
    ),
    "strict, and no file of NVML": Case(
        Reason.NOT_FORWARDED, "libnvidia-ml.so.1", paths=NO_FORWARDER
    ),
    "a CDI spec that mounts over ours": Case(
        Reason.MOUNT_COLLISION,
        "/etc/ld.so.preload",
        specs=of_a(own=Edits(mounts=(Mount("/etc/ld.so.preload", "/x"),))),
    ),
    "a variable twice": Case(
        Reason.ENV_TWICE,
        "NVIDIA_VISIBLE_DEVICES: duplicate value (2 times",
        container=env("NVIDIA_VISIBLE_DEVICES=all", "X=", "NVIDIA_VISIBLE_DEVICES=all"),
    ),
    "a variable of the CDI spec twice": Case(
        Reason.ENV_TWICE, "NVIDIA_CTK", container=env("NVIDIA_CTK=1", "NVIDIA_CTK")
    ),
}
CASES: Final = {**CLAIMS, **CONTAINERS}


@pytest.mark.parametrize("name", CASES)
def test_refused(name: str) -> None:
    case = CASES[name]
    refusal = refused(case.reason, case.pod, case.container, case.specs, case.paths)
    assert case.text in refusal.text


IN_THE_WAY: Final = {
    "/": "/.gpuslice",
    "/.gpuslice": "/.gpuslice",
    "/.gpuslice/": "/.gpuslice",
    ".gpuslice": "/.gpuslice",
    "//.gpuslice": "/.gpuslice",
    "/x/../.gpuslice/region": "/.gpuslice",
    "/.gpuslice/grant": "/.gpuslice",
    "/etc": "/etc/ld.so.preload",
    "/etc/./ld.so.preload": "/etc/ld.so.preload",
    "/etc/ld.so.preload/x": "/etc/ld.so.preload",
}


@pytest.mark.parametrize("destination", IN_THE_WAY)
def test_a_volume_in_our_way_is_refused(destination: str) -> None:
    refusal = refused(Reason.MOUNT_COLLISION, pod([HALF]), volume("/v", at=destination))
    assert refusal.fields == {"mount": destination, "ours": IN_THE_WAY[destination]}


ALLOWED: Final[Mapping[str, Container]] = {
    "beside the link of all hosts": volume("/var/running"),
    "the library, to read": volume("/opt/store/libvgpu.so", "ro"),
    "beside the files": volume("/run/gpuslice2"),
    "no place of the host": volume("", at="/proc"),
    "a volume at a similar path": volume("/v", at="/.gpuslice2"),
    "a volume beside the preload": volume("/v", at="/etc/hosts"),
    "a volume below a similar path": volume("/v", at="/etcetera"),
    "another device": replace(MAIN, devices=(Device("/dev/fuse", "c", 10, 229),)),
    "a preload of its own": env("LD_PRELOAD=/lib/jemalloc.so", "LD_AUDIT="),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name: str) -> None:
    paths = replace(PATHS, library="/opt/store/libvgpu.so")
    assert isinstance(decide(pod([HALF]), ALLOWED[name], paths=paths), ContainerPlan)


@pytest.mark.parametrize("handler", ["", "runc", "crun", "nvidia"])
def test_a_runtime_of_this_kernel_is_allowed(handler: str) -> None:
    of = replace(pod([HALF]), runtime_handler=handler)
    assert isinstance(decide(of), ContainerPlan)


def test_every_container_of_a_malformed_pod_is_refused() -> None:
    for of in (pod(allocated="{"), pod([HALF], granted_text="{")):
        assert isinstance(decide(of, SIDE), Refusal)


def test_the_grant_refuses_variables_of_no_dialect() -> None:
    granted = {"main": [grant(A, GIB)], "side": [grant(A, GIB)]}
    variables = {"main": {"LD_PRELOAD": "/x"}, "side": {"VOLCANO_GPU_ALLOCATED": "1024"}}
    of = pod([HALF], granted_text=grants.encode(granted, variables))
    refusal = refused(Reason.GRANTS_MALFORMED, of)
    assert "env.main: invalid variable LD_PRELOAD: must be one of GPU_PORTION" in refusal.text
    assert dict(adjusted(of, SIDE).env)["VOLCANO_GPU_ALLOCATED"] == "1024"
    assert annotation_claims.has_shares(of)


def test_containers_with_a_share_of_a_failed_gpu_are_refused() -> None:
    of = pod([HALF, entry({MEMORY: 1}, "GPU-failed", 9)], {"main": [grant(A, 1)], "side": [FAILED]})
    assert isinstance(decide(of), ContainerPlan)
    refused(Reason.GPU_UNKNOWN, of, SIDE)


def test_each_check_refuses_a_row() -> None:
    """A check without a row would not be missed. Without CDI devices no plan can be made."""
    for skipped in {*checks.CHECKS} - {checks.cdi}:
        rest = [each for each in checks.CHECKS if each is not skipped]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checks, "CHECKS", rest)
            assert any(_passes(case) for case in CONTAINERS.values()), skipped.__name__


def _passes(case: Case) -> bool:
    result = objects.decide(case.pod, case.container, (A, B), case.specs, case.paths)
    return not isinstance(result, Refusal) or result.reason is not case.reason


@pytest.mark.parametrize("value", ["all", "none", "void", ""])
def test_values_that_images_set_name_no_gpus(value: str) -> None:
    lines = ("PATH=/bin", f"{names.ENV_VISIBLE_DEVICES}={value}", "CUDA_VISIBLE_DEVICES=0")
    assert checks.names_gpus(lines) == ""


_NAMES_NONE = frozenset({"", "none", "void"})


@given(st.text(min_size=1).filter(lambda text: text != "all"))
def test_a_list_of_gpus_is_reported(value: str) -> None:
    listed = {each.strip() for each in value.split(",")} - _NAMES_NONE
    warning = checks.names_gpus([f"{names.ENV_VISIBLE_DEVICES}={value}"])
    assert ("starts without a GPU" in warning) == bool(listed)
