"""Programs in a pod that holds half of a GPU are limited, however they are started."""

from __future__ import annotations

import json

import pytest

from gpuslice.contract import names
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Container, Process
from lab.node.lab import Lab
from tests.support import GIB

from ..scene import (
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
    """The loader ignores LD_PRELOAD for a setuid program, but reads /etc/ld.so.preload."""
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


def test_a_kill_in_one_container_gives_memory_back_to_the_other(lab: Lab) -> None:
    """The containers have separate PID namespaces. The library sees the exit by a file lock."""
    with lab.pod("koordinator", lab.allocated([(0, HALF, 50)])) as pod:
        one, two = pod.run("one", OWN), pod.run("two", OWN)
        hold_all(one)
        assert probe(two).found_it_full()
        assert one.exec(["sh", "-c", "kill -9 $(cat /tmp/pid)"]).code == 0
        assert probe(two).held_to(HALF)
        hold_all(one)
        one.stop()
        assert probe(two).held_to(HALF)


def test_sixteen_gpus_come_in_a_reply_of_more_than_5_kb(test_programs: Files) -> None:
    """NRI's transport drops a first frame above 4,096 bytes: the agent must split its reply."""
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
