"""Inside a pod that holds half of a GPU: the limit holds however a program is started."""

from __future__ import annotations

import json

import pytest

from gpuslice.contract import names
from gpuslice.contract.overhead import CODE_BYTES
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Container, Process
from lab.node.lab import Lab
from tests.support import GIB

from ..scene import (
    FLOOR,
    HALF,
    LAUNCHER,
    OWN,
    PROBE,
    SETUID_PROBE,
    Files,
    granted,
    hold_all,
    lab_of,
    probe,
)

pytestmark = pytest.mark.node

STARTED_BY = {
    "a shell that unsets everything": [
        *("bash", "-c", f"for name in $(compgen -e); do unset $name; done; exec {PROBE}")
    ],
    "a statically linked launcher": [LAUNCHER, PROBE],
    "limits that the tenant writes": [
        *("env", f"{names.ENV_MEMORY_LIMIT}=999g", f"{names.ENV_MEMORY_LIMIT}_0=999g"),
        *(f"{names.ENV_DIR}=/tmp", PROBE),
    ],
}


@pytest.mark.parametrize("command", STARTED_BY.values(), ids=STARTED_BY)
def test_the_limit_holds_for_a_program_started_by(half: Container, command: list[str]) -> None:
    assert probe(half, command).held_to(HALF)


def test_a_setuid_program_is_limited(half: Container) -> None:
    """The loader ignores LD_PRELOAD for it, but reads /etc/ld.so.preload."""
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    for given in ([], ["env", "LD_PRELOAD=libc.so.6"]):
        taken = probe(half, [*drop, *given, SETUID_PROBE])
        assert taken.euid == 0
        assert taken.held_to(HALF)


def test_a_user_without_rights_on_a_root_that_is_read_only_is_limited(lab: Lab) -> None:
    with granted(lab, Process(PYTHON_IMAGE, user=65534, read_only=True)) as container:
        assert container.exec(["touch", "/tmp/x"]).code != 0
        taken = probe(container)
        assert taken.euid == 65534
        assert taken.held_to(HALF)


_LOADER = """
import time
from cuda.bindings import driver

def must(said):
    assert said[0] == 0, said
    return said[1:]

MIB = 1 << 20
code = b".version 8.0\\n.target sm_80\\n.address_size 64\\n// simgpu: module_bytes=%d\\n"
must(driver.cuInit(0))
must(driver.cuCtxSetCurrent(must(driver.cuDevicePrimaryCtxRetain(0))[0]))
free, total = must(driver.cuMemGetInfo())
(module,) = must(driver.cuModuleLoadData(code % (200 * MIB) + b".visible .entry e() { ret; }"))
(entry,) = must(driver.cuModuleGetFunction(module, b"e"))
must(driver.cuLaunchKernel(entry, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
deadline = time.monotonic() + 60
while must(driver.cuMemGetInfo())[0] == free and time.monotonic() < deadline:
    time.sleep(0.1)
print(free // MIB, must(driver.cuMemGetInfo())[0] // MIB)
"""


def test_code_comes_off_the_limit_once_it_is_measured(half: Container) -> None:
    done = half.exec(["python3", "-c", _LOADER])
    assert done.code == 0, done
    free, allowed = (HALF - FLOOR) >> 20, CODE_BYTES >> 20
    assert done.out.split() == [str(free), str(free - (200 - allowed))]


_SEED = (
    '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"50",'
    '"koordinator.sh/gpu-memory":"20Gi","koordinator.sh/gpu-memory-ratio":"50"}}]}'
)
"""Koordinator's annotation as its documents show it: without an id, the minor identifies the
GPU."""


def test_a_kill_in_one_container_gives_memory_back_to_the_other(lab: Lab) -> None:
    """Each has its own PID namespace: the lock of the exited process decides."""
    labels = {names.LABEL_ISOLATION_PROVIDER: "HAMi-core"}
    with lab.pod("seed", {names.ANNOTATION_DEVICE_ALLOCATED: _SEED}, labels) as pod:
        one, two = pod.run("one", OWN), pod.run("two", OWN)
        hold_all(one)
        assert probe(two).found_it_full()
        assert one.exec(["sh", "-c", "kill -9 $(cat /tmp/pid)"]).code == 0
        assert probe(two).held_to(HALF)
        hold_all(one)
        one.stop()
        assert probe(two).held_to(HALF)


def test_sixteen_gpus_come_in_a_reply_of_more_than_5_kb(test_programs: Files) -> None:
    """NRI's transport drops a frame above 4,096 bytes that starts a message: it must be split."""
    with lab_of([GIB] * names.MAX_GPUS, test_programs) as lab:
        spec = lab.sim_dir / "cdi" / "nvidia.json"
        document = json.loads(spec.read_text())
        document["containerEdits"]["env"] = [f"LONG={'x' * 5000}"]
        spec.write_text(json.dumps(document))
        lab.start_agent()
        shares = [(index, GIB // 2, 50) for index in range(names.MAX_GPUS)]
        with lab.pod("all", lab.share({"main": shares})) as pod:
            container = pod.run("main", OWN)
            assert container.exec(["bash", "-c", "echo ${#LONG}"]).out == "5000\n"
            assert probe(container).held_to(GIB // 2)
            query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
            assert container.exec(query).out.split() == ["512"] * names.MAX_GPUS
