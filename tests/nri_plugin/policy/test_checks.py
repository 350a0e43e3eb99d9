"""The checks that refuse a container a share: one row for each objection."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuslice.contract import grants, names
from nri_plugin.policy import annotation_claims, checks
from nri_plugin.policy.model import Container, Device, Edits, Mount, Paths, Pod, Specs
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.refusals import Reason, Refusal
from tests.nri_plugin import objects
from tests.nri_plugin.policy import plan_scene as scene
from tests.nri_plugin.policy.plan_scene import HALF, MAIN, SIDE, A, B, decide, entry, grant, pod
from tests.support import GIB

RUN = "/run/gpuslice"


@dataclass(frozen=True)
class Case:
    """A container that the policy refuses, with a part of the text."""

    reason: Reason
    text: str
    pod: Pod = field(default_factory=lambda: pod([HALF]))
    container: Container = MAIN
    specs: Specs = scene.SPECS
    paths: Paths = scene.PATHS


def env(*lines: str) -> Container:
    return replace(MAIN, env=lines)


def volume(source: str, *options: str, at: str = "/x") -> Container:
    return replace(MAIN, mounts=(Mount("/data", "/d"), Mount(at, source, options)))


def node(path: str, major: int, minor: int) -> Container:
    return replace(MAIN, devices=(Device(path, "c", major, minor),))


def of_a(**edits: Any) -> Specs:
    return Specs({A.uuid: scene.device(A, own=Edits(**edits)), B.uuid: scene.device(B)})


def one(uuid: str | None = A.uuid, minor: int = 0, **resources: int) -> Pod:
    return pod([entry(uuid, minor, **resources)])


OF_HAMI = pod([HALF], labels={names.LABEL_ISOLATION_PROVIDER: "hami"})
TWO, OF_A = pod([HALF, scene.OTHER]), [grant(A)]
MEMORY = names.RESOURCE_MEMORY
POTATOES = f'{{"gpu": [{{"minor": 0, "resources": {{"{MEMORY}": "12 potatoes"}}}}]}}'
MALFORMED, RANGE = Reason.ALLOCATION_MALFORMED, Reason.MEMORY_OUT_OF_RANGE
NAME, HOST, LINK = Reason.IDENTITY_INVALID, Reason.HOST_VOLUME, "/var/run/gpuslice"
GIVEN, CONFLICT, VISIBLE = Reason.GPU_GIVEN, Reason.CDI_CONFLICT, "NVIDIA_VISIBLE_DEVICES"
UNUSABLE = Specs({A.uuid: scene.device(A, problem="/dev/nvidia0: gone")})
OTHER_LIBCUDA = scene.LIBCUDA._replace(source="/other")
OTHER_NODE = Device("/dev/nvidiactl", "c", 1, 3)
NO_FORWARDER = replace(scene.PATHS, forwarders=dict.fromkeys(names.DRIVER_SONAMES, "/store/x"))

CASES: Final = {
    "an unknown provider": Case(Reason.PROVIDER_UNKNOWN, "'hami': must be 'hami-core'", OF_HAMI),
    "potatoes": Case(MALFORMED, f"resources.{MEMORY}: invalid value '12", pod(allocated=POTATOES)),
    "no JSON": Case(MALFORMED, "not JSON", pod(allocated="{"), SIDE),
    "an empty allocation": Case(MALFORMED, "not JSON", pod(allocated="")),
    "no JSON, but grants": Case(MALFORMED, "not JSON", pod(allocated="{", labels={}, main=OF_A)),
    "a GPU that is 1": Case(MALFORMED, "invalid type int", pod(allocated='{"gpu":[1]}', labels={})),
    "17 GPUs": Case(Reason.TOO_MANY_GPUS, "17 GPUs: must be at most 16", pod([HALF] * 17)),
    "16 GPUs": Case(Reason.GPU_TWICE, "gpu[1].id: duplicate value", pod([HALF] * 16)),
    "a GPU twice": Case(
        Reason.GPU_TWICE, f"duplicate value {A.uuid}", pod([HALF, replace(HALF, id=None)])
    ),
    "a GPU unknown by id": Case(
        Reason.GPU_UNKNOWN, f"GPU of this node ({A.uuid} as minor 0", one("GPU-nowhere", memory=1)
    ),
    "a GPU unknown by minor": Case(Reason.GPU_UNKNOWN, "GPU with minor 7", one(None, 7, memory=1)),
    "id and minor disagree": Case(
        Reason.GPU_MISMATCH, f"value 1: must be 0, the minor of {A.uuid}", one(minor=1, memory=1)
    ),
    "no memory": Case(Reason.MEMORY_MISSING, "gpu[0].resources: required value", one(core=50)),
    "memory 0": Case(RANGE, "0 bytes", one(memory=0)),
    "ratio 0": Case(RANGE, "0 bytes", one(ratio=0)),
    "ratio 101": Case(RANGE, "the whole GPU", one(ratio=101)),
    "more memory than the GPU has": Case(
        RANGE, f"{40 * GIB + 1} bytes of memory: must be 1 to {40 * GIB}", one(memory=40 * GIB + 1)
    ),
    "core 101": Case(
        Reason.CORE_OUT_OF_RANGE, "101 percent of core: must be 0 to 100", one(memory=1, core=101)
    ),
    "grants alone": Case(Reason.GRANTS_ALONE, "must be unset where", pod(labels={}, main=OF_A)),
    "grants of another version": Case(
        Reason.GRANTS_MALFORMED, "v: invalid value 2", pod([HALF], granted='{"v":2}'), SIDE
    ),
    "a grant of a GPU outside the allocation": Case(
        Reason.GRANT_NOT_ALLOCATED,
        f"containers.main[0]: invalid value {B.uuid} as minor 1: must be a GPU of the pod's",
        pod([HALF], main=[grant(B)]),
    ),
    "a grant with another minor": Case(
        Reason.GRANT_NOT_ALLOCATED, "as minor 1", pod([HALF], main=[grant(replace(A, minor=1))])
    ),
    "a grant of more memory than the allocation": Case(
        Reason.GRANT_OVER_ALLOCATION,
        f"containers.main[0].memory: invalid value {20 * GIB + 1}: must be at most {20 * GIB}",
        pod([HALF], main=[grant(A, 20 * GIB + 1)]),
    ),
    "a grant of more core than the allocation": Case(
        Reason.GRANT_OVER_ALLOCATION,
        f"core: invalid value 51: must be at most 50, the pod's allocation of {A.uuid}",
        pod([HALF], main=[grant(A, core=51)]),
    ),
    "a compute policy": Case(
        Reason.COMPUTE_POLICY_INVALID,
        "metadata.annotations[gpuslice.io/compute]: invalid value 'force': must be fair, capped,"
        " turns or background",
        scene.computing(pod([HALF]), pod="force"),
    ),
    "a container's compute policy": Case(
        Reason.COMPUTE_POLICY_INVALID,
        "metadata.annotations[gpuslice.io/compute.main]: invalid value '': must be",
        scene.computing(pod([HALF], main=OF_A), main="", pod="fair"),
    ),
    "a pod UID that is a path": Case(NAME, "'../x'", pod([HALF], uid="../x")),
    "a pod without UID": Case(NAME, "pod uid: invalid value ''", pod([HALF], uid="")),
    "a container name that is a path": Case(NAME, "'../x'", container=replace(MAIN, name="../x")),
    "an id that is a path": Case(NAME, "'a/b'", pod([HALF], main=OF_A), replace(MAIN, id="a/b")),
    "another container's files": Case(
        Reason.RESTORED, f"mount /x: invalid value {RUN}/old: ", container=volume(f"{RUN}/old")
    ),
    "below them, by a link of all hosts": Case(
        Reason.RESTORED, LINK, container=volume(f"{LINK}/a")
    ),
    "files of all containers": Case(HOST, f"value {RUN}: ", container=volume(RUN)),
    "above them, in other words": Case(HOST, "//run/../run/.", container=volume("//run/../run/.")),
    "them, by a link of all hosts": Case(HOST, LINK, container=volume(LINK)),
    "the host": Case(HOST, "mount /x", container=volume("/", "rbind", "ro")),
    "the library's store": Case(
        HOST, "/lib", container=volume("/lib/store"), paths=Paths(RUN, "/lib/store/x")
    ),
    "another kernel": Case(
        Reason.HANDLER_UNKNOWN, "gvisor", replace(pod([HALF]), runtime_handler="gvisor")
    ),
    "every device": Case(Reason.PRIVILEGED, "privileged", container=replace(MAIN, privileged=True)),
    "an auditor, at the second mention": Case(
        Reason.ENV_AUDITS, "must be unset", container=env("LD_AUDIT=", "LD_AUDIT=/tmp/audit.so")
    ),
    "libc before ours, after a space": Case(
        Reason.ENV_PRELOADS, "name libc.so.6", container=env("LD_PRELOAD=/lib/x.so libc.so.6")
    ),
    "the driver before ours, by its path": Case(
        Reason.ENV_PRELOADS,
        "must not name /usr/lib/x86_64-linux-gnu/libcuda.so.1",
        container=env("LD_PRELOAD=:/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
    ),
    "a GPU's node": Case(GIVEN, "device /dev/nvidia0", container=node("/dev/nvidia0", 195, 0)),
    "a GPU's node, renamed": Case(GIVEN, "device /dev/null2", container=node("/dev/null2", 195, 3)),
    "a GPU's node as a volume": Case(GIVEN, "mount /x", container=volume("/dev//nvidia1")),
    "a request to NVIDIA's runtime": Case(
        GIVEN,
        "mount /var/run/nvidia-container-devices/0",
        container=volume("/dev/null", at="/var/run/nvidia-container-devices/0"),
    ),
    "a CDI device": Case(
        GIVEN,
        "CDI device nvidia.com/gpu=0",
        container=replace(MAIN, cdi_names=("nvidia.com/gpu=0", "k8s.gpu.nvidia.com/device=0")),
    ),
    "a variable twice": Case(
        Reason.ENV_TWICE, f"{VISIBLE}: duplicate value (2", container=env(VISIBLE, "X=", VISIBLE)
    ),
    "a variable of the CDI spec twice": Case(
        Reason.ENV_TWICE, "NVIDIA_CTK", container=env("NVIDIA_CTK=1", "NVIDIA_CTK")
    ),
    "no library": Case(
        Reason.LIBRARY_MISSING,
        "the library is missing on this node: /opt/x: No such file",
        container=volume("/usr"),
        paths=Paths(RUN, None, "/opt/x: No such file or directory"),
    ),
    "no CDI spec": Case(Reason.CDI_MISSING, f"{names.CDI_KIND}={A.uuid}", specs=Specs()),
    "an unreadable CDI spec": Case(
        Reason.CDI_MISSING, "; unreadable: /x.json: no", specs=Specs({}, ("/x.json: no",))
    ),
    "an unusable CDI device": Case(
        Reason.CDI_UNUSABLE, "/etc/cdi/nvidia.yaml: /dev/nvidia0: gone", specs=UNUSABLE
    ),
    "specs with two sources of a mount": Case(
        CONFLICT, "mount /usr/lib/libcuda.so.1", TWO, specs=of_a(mounts=(OTHER_LIBCUDA,))
    ),
    "specs with two values of a variable": Case(
        CONFLICT, "environment NVIDIA_CTK", TWO, specs=of_a(env=(("NVIDIA_CTK", "y"),))
    ),
    "specs with two nodes of a device": Case(
        CONFLICT, "device /dev/nvidiactl", TWO, specs=of_a(devices=(OTHER_NODE,))
    ),
    "strict, and no file of NVML": Case(
        Reason.NOT_FORWARDED, "libnvidia-ml.so.1", paths=NO_FORWARDER
    ),
    "a CDI spec that mounts over ours": Case(
        Reason.MOUNT_COLLISION,
        "/etc/ld.so.preload",
        specs=of_a(mounts=(Mount("/etc/ld.so.preload", "/x"),)),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_refused(case: Case) -> None:
    refusal = scene.refused(case.reason, case.pod, case.container, case.specs, case.paths)
    assert case.text in refusal.text


OURS = ["/", "/.gpuslice", "/.gpuslice/", ".gpuslice", "//.gpuslice", "/x/../.gpuslice/region"]
PRELOAD = ["/etc", "/etc/./ld.so.preload", "/etc/ld.so.preload/x"]


@pytest.mark.parametrize("destination", [*OURS, "/.gpuslice/grant", *PRELOAD])
def test_a_volume_in_our_way_is_refused(destination: str) -> None:
    container = volume("/v", at=destination)
    refusal = scene.refused(Reason.MOUNT_COLLISION, pod([HALF]), container)
    ours = "/etc/ld.so.preload" if destination in PRELOAD else "/.gpuslice"
    assert refusal.fields == {"mount": destination, "ours": ours}


ALLOWED: Final = {
    "beside the link of all hosts": volume("/var/running"),
    "the library, to read": volume("/opt/store/libvgpu.so", "ro"),
    "beside the files": volume("/run/gpuslice2"),
    "no place of the host": volume("", at="/proc"),
    "a volume at a similar path": volume("/v", at="/.gpuslice2"),
    "a volume beside the preload": volume("/v", at="/etc/hosts"),
    "a volume below a similar path": volume("/v", at="/etcetera"),
    "another device": node("/dev/fuse", 10, 229),
    "a preload of its own": env("LD_PRELOAD=/lib/jemalloc.so", "LD_AUDIT="),
}


@pytest.mark.parametrize("container", ALLOWED.values(), ids=ALLOWED)
def test_allowed(container: Container) -> None:
    paths = replace(scene.PATHS, library="/opt/store/libvgpu.so")
    assert isinstance(decide(pod([HALF]), container, paths=paths), ContainerPlan)


@pytest.mark.parametrize("handler", ["", "runc", "crun", "nvidia"])
def test_a_runtime_of_this_kernel_is_allowed(handler: str) -> None:
    assert isinstance(decide(replace(pod([HALF]), runtime_handler=handler)), ContainerPlan)


def test_the_grant_refuses_variables_of_no_dialect() -> None:
    variables = {"main": {"LD_PRELOAD": "/x"}, "side": {"VOLCANO_GPU_ALLOCATED": "1024"}}
    granted = grants.encode({name: [grant(A, GIB)] for name in variables}, variables)
    of = pod([HALF], granted=granted)
    refusal = scene.refused(Reason.GRANTS_MALFORMED, of)
    assert "env.main: invalid variable LD_PRELOAD: must be one of GPU_PORTION" in refusal.text
    assert dict(scene.adjusted(of, SIDE).env)["VOLCANO_GPU_ALLOCATED"] == "1024"
    assert annotation_claims.has_shares(of)


def test_containers_with_a_share_of_a_failed_gpu_are_refused() -> None:
    failed = scene.FAILED
    entries = [HALF, entry(failed.uuid, failed.minor, memory=1)]
    of = pod(entries, main=[grant(A)], side=[grant(failed)])
    assert isinstance(decide(of), ContainerPlan)
    scene.refused(Reason.GPU_UNKNOWN, of, SIDE)
    gpus = (A, replace(failed, problem="fell off the bus"))
    refusal = objects.decide(of, SIDE, gpus, scene.SPECS, scene.PATHS)
    assert isinstance(refusal, Refusal) and refusal.reason is Reason.GPU_UNHEALTHY


@given(st.text())
@example("all")  # these three values are common in images
@example("void")
@example("none")
def test_a_list_of_gpus_is_reported(value: str) -> None:
    listed = value != "all" and {each.strip() for each in value.split(",")} - {"", "none", "void"}
    lines = (f"{names.ENV_VISIBLE_DEVICES}={value}", "CUDA_VISIBLE_DEVICES=0")
    assert ("starts without a GPU" in checks.names_gpus(lines)) == bool(listed)
