"""The bypass table: each known way round a limit, and what the audit makes of it.

It is the single list of the ways that docs/security.md has ("What a tenant can do") and of those
that are known of other preload libraries. A way is prevented, or found from outside within
WITHIN_S, or it is not found, with the reason.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import pytest

from gpuslice.contract import names
from gpuslice.contract.region_file import Geometry
from lab.node.catalogue import NO_ETC_IMAGE, PYTHON_IMAGE
from lab.node.cri import Container, Process, Sandbox
from lab.node.lab import Lab
from nri_plugin.gpu.audit import Finding

from ..attacks import COPY, ENTER, REMOVE
from ..scene import (
    AUDITS,
    HALF,
    NAMESPACED,
    OWN,
    PLUGIN,
    PROBE,
    SETUID_PROBE,
    Taken,
    agent_with,
    one,
    sample,
)

pytestmark = pytest.mark.node

WITHIN_S: Final = 2.0
_STALL_S: Final = 2.0
"""The machine of the tests may stand still for this time."""
_LOADER: Final = "/lib64/ld-linux-x86-64.so.2"
_REGION: Final = f"{names.CONTAINER_DIR}/{names.FILE_REGION}"
_CHARGE: Final = Geometry(1).gpu_offset(0)
_SAID: Final = "/dev/shm/said"
OVER, BARE, COVERED, STRANGER = Finding


@dataclass(frozen=True)
class Way:
    """A way round the limit. found: what the audit finds; empty: the way is prevented. command:
    with the argument `hold` it holds all memory that it gets. before: a script that the container
    runs before. beside: a script that a second container runs before."""

    name: str
    found: Collection[Finding] = ()
    command: str = PROBE
    process: Process = OWN
    before: str = ""
    beside: str = ""
    neighbour: Process = OWN
    sandbox: Sandbox = field(default_factory=Sandbox)
    options: tuple[str, ...] = ()


_SHELL: Final = "for name in $(compgen -e); do unset $name; done; exec"
_LIMITS: Final = (
    f"env {names.ENV_MEMORY_LIMIT}=999g {names.ENV_SHARED_CACHE}=/tmp/x {names.ENV_DIR}=/tmp"
)
_CHANGED_LOADER: Final = f"""python3 -c '
data = open("{_LOADER}", "rb").read().replace(b"/etc/ld.so.preload", b"/etc/ld.so.PRELOAD")
open("/tmp/ld.so", "wb").write(data)' && chmod +x /tmp/ld.so"""
_UNSHARE: Final = (
    f"unshare --map-root-user --mount sh -c"
    f" 'mount --bind /dev/null {names.CONTAINER_PRELOAD} && exec {PROBE} hold'"
)
_BY_DEVICE: Final = """python3 -c '
import os
os.set_inheritable(os.open("/dev/nvidia0", os.O_PATH), True)
print("{}", flush=True)
os.execv("/usr/bin/busybox", ["busybox", "sleep", "60"])'"""
"""A static program that has the device open. No driver serves the lab's devices, so that they can
only be opened as paths."""
_CODE: Final = """python3 -c '
import time
from cuda.bindings import driver
_, device = driver.cuInit(0), driver.cuDeviceGet(0)[1]
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(device)[1])
print(driver.cuMemAlloc(driver.cuMemGetInfo()[1])[0].value, flush=True)
head = b".version 8.0\\n.target sm_80\\n.address_size 64\\n"
size = b"// simgpu: module_bytes=%d\\n" % (1 << 30)
module = driver.cuModuleLoadData(head + size + b".visible .entry entry() { ret; }\\n")[1]
function = driver.cuModuleGetFunction(module, b"entry")[1]
assert driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)[0].value == 0
time.sleep(60)'"""

WAYS: Final = (
    Way("a program without an environment", command=f"env -i {PROBE}"),
    Way("a setuid program", command=f"setpriv --reuid=65534 --clear-groups {SETUID_PROBE}"),
    Way("a shell that unsets everything", command=f"bash -c '{_SHELL} {PROBE} hold'"),
    Way("variables with other limits", command=f"{_LIMITS} {PROBE}"),
    Way("a variable that turns HAMi-core off", command=f"env CUDA_DISABLE_CONTROL=true {PROBE}"),
    Way("a library that is overwritten", before=f"! echo >{names.CONTAINER_LIBRARY}"),
    Way(
        "a charge that the tenant lowers",
        {OVER},
        before=(
            f"{PROBE} hold >/tmp/first 2>&1 & until test -s /tmp/first; do :; done;"
            f" dd if=/dev/zero of={_REGION} bs=8 seek={_CHARGE // 8} count=1 conv=notrunc"
        ),
    ),
    Way(
        "chroot into a copy",
        {OVER, BARE},
        "env SIMGPU_DIR=/copy chroot /dev /bin/probe",
        before=COPY,
    ),
    Way(
        "/etc moved, where the image has none",
        {OVER, BARE, COVERED},
        process=Process(NO_ETC_IMAGE),
        before="mv /etc /etc2",
    ),
    Way("a user namespace of its own", {OVER, BARE, COVERED}, _UNSHARE),
    Way("a static program", {BARE}, _BY_DEVICE),
    Way("a changed loader", {OVER, BARE}, f"/tmp/ld.so {PROBE}", before=_CHANGED_LOADER),
    Way("libc preloaded for a child", {OVER}, f"env LD_PRELOAD=libc.so.6 {PROBE}"),
    Way("libc preloaded by the loader", {OVER}, f"{_LOADER} --preload libc.so.6 {PROBE}"),
    Way("LD_AUDIT", {OVER, BARE}, f"env LD_AUDIT={AUDITS} {PROBE}"),
    Way("an audit by the loader", {OVER, BARE}, f"{_LOADER} --audit {AUDITS} {PROBE}"),
    Way(
        "a plugin in a namespace of its own",
        {OVER},
        f"env LD_LIBRARY_PATH=/lib64 {NAMESPACED} {PLUGIN}",
    ),
    Way("code and variables of a module", {OVER}, _CODE),
    Way(
        "removal by the pod's other container",
        {OVER, BARE, COVERED},
        beside=REMOVE,
        sandbox=Sandbox(pid="POD"),
    ),
    Way(
        "unmounting by the pod's other container",
        {OVER, BARE, COVERED},
        beside=f"python3 - <<'END'\n{ENTER}END\n",
        neighbour=Process(PYTHON_IMAGE, capabilities=["SYS_ADMIN"]),
        sandbox=Sandbox(pid="POD"),
        options=("--allow-capability", "SYS_ADMIN"),
    ),
)


_BESIDE_NOTHING: Final = "a simulated driver has none; what is beyond the grant is over_grant"
NOT_FOUND: Final = {
    "raw ioctls of a program that has mapped the library": _BESIDE_NOTHING,
    "Vulkan, OpenGL and the video engines": _BESIDE_NOTHING,
    "memory within the grant, past the library": "the container holds no more than it was given",
    "the last 64 MiB of code for each process": "the driver loads code without an allocation",
    "a program that ends within two looks": "a look may meet an exec, so two in a row are needed",
    "a descriptor of memory, or a DMA buffer, of a process that has ended": "NVML lists no process",
    "a share of compute (graphs, long kernels)": "the audit judges memory and the library only",
}
"""What the audit does not find, with the reason."""
ELSEWHERE: Final = {
    "SYS_ADMIN, privileged, hostPID with SYS_PTRACE": "test_a_capability_that_loosens_the_limit",
    "a volume of the host's directories": "test_a_volume_of_the_hosts_limits",
    "a directory sent to another pod": "test_escape_that_remains_a_directory_handed_to_another_pod",
    "musl programs": "test_every_way_to_the_driver_meets_the_limit",
}
"""Ways that another test shows: they are prevented, or work as a way above does."""


@contextmanager
def _agent(lab: Lab, way: Way) -> Iterator[None]:
    if way.options:
        with agent_with(lab, *way.options):
            yield
        return
    if not lab.agent_running:
        lab.start_agent()
    yield


def _looks(lab: Lab, count: int) -> None:
    """Wait for further looks of the audit."""
    name = "gpuslice_audit_looks_total"
    wanted = sample(lab, name) + count
    lab.wait_until(lambda: sample(lab, name) >= wanted, "looks of the audit")


def _findings(lab: Lab, pod: str) -> dict[Finding, float]:
    """Return the time of each finding of the pod, as the log has it."""
    pattern = rf'^time=(\S+) .* msg="audit finding" finding=(\S+) .* pod={pod} '
    found = re.finditer(pattern, lab.agent_log.read_text(), re.MULTILINE)
    return {Finding(each[2]): datetime.fromisoformat(each[1]).timestamp() for each in found}


def _held(container: Container, command: str) -> tuple[str, float]:
    """Start a command that stays. Return what it prints, and when it did."""
    script = f"rm -f {_SAID}; {command} hold >{_SAID} 2>&1 & until test -s {_SAID}; do :; done"
    done = container.exec(["sh", "-c", f"{script}; cat {_SAID}; stat -c %.Y {_SAID}"])
    assert done.code == 0, done
    *_, text, at = done.out.splitlines()
    return text, float(at)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_way_is_prevented_or_found(lab: Lab, way: Way, request: pytest.FixtureRequest) -> None:
    pod_name = f"way-{WAYS.index(way)}"
    with ExitStack() as stack:
        stack.enter_context(_agent(lab, way))
        pod = stack.enter_context(lab.pod(pod_name, one(lab), of=way.sandbox))
        container = pod.run("main", way.process)
        other = pod.run("other", way.neighbour) if way.beside else None
        _looks(lab, 2)
        assert not way.before or container.exec(["sh", "-c", way.before]).code == 0
        if other is not None:
            assert not _findings(lab, pod_name)
            done = other.exec(["sh", "-c", way.beside])
            assert done.code == 0, done
        text, at = _held(container, way.command)
        if not way.found:
            assert Taken(**json.loads(text)).held_to(HALF)
            _looks(lab, 3)
        else:
            lab.wait_until(lambda: _findings(lab, pod_name).keys() >= {*way.found}, "the findings")
            late_s = max(_findings(lab, pod_name)[each] for each in way.found) - at
            request.node.user_properties.append(("found after s", round(late_s, 2)))
            assert late_s <= WITHIN_S + _STALL_S
        assert _findings(lab, pod_name).keys() == {*way.found}


def test_a_container_without_a_share_on_a_gpu_with_shares(lab: Lab) -> None:
    """Its GPU is of another device plugin."""
    there = lab.directory / "cdi" / "nvidia.json"
    shutil.copy(lab.sim_dir / "cdi" / "nvidia.json", there)
    given = Process(PYTHON_IMAGE, cdi=[f"{names.CDI_KIND}={lab.gpus[0].uuid}"])
    with lab.pod("with", one(lab)) as first, lab.pod("without") as second:
        first.run("main", OWN)
        stranger = second.run("main", given)
        _looks(lab, 2)
        _, at = _held(stranger, PROBE)
        lab.wait_until(lambda: bool(_findings(lab, "without")), "the finding")
        assert _findings(lab, "without").keys() == {STRANGER}
        assert _findings(lab, "without")[STRANGER] - at <= WITHIN_S + _STALL_S
        assert not _findings(lab, "with")
        labels = 'namespace="default",pod="without"'
        assert sample(
            lab, f'gpuslice_audit_findings{{container="main",finding="no_share",{labels}}}'
        )
    there.unlink()
