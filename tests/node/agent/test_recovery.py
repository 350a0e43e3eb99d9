"""Whatever restarts, the node's state is recovered, and no GPU is granted twice meanwhile."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from lab.node.cri import Container, CriError
from lab.node.lab import Lab
from tests.support import GIB

from ..scene import HALF, OWN, WHOLE, granted, one, probe

pytestmark = pytest.mark.node

FIFTH = WHOLE // 5


def expect_full(lab: Lab, holder: str = "default/fifth-4/main") -> None:
    """Expect a refusal of a valid allocation for which the running containers leave no room."""
    refused = pytest.raises(CriError, match=f"insufficient free capacity: .*{holder}")
    with lab.pod("forger", one(lab, GIB, core=10)) as pod, refused:
        pod.create("main", OWN)


def expect_free(lab: Lab, memory: int = HALF) -> None:
    """Expect that a new container gets this memory, at the latest when the runtime has reported the
    exit of the container that held it."""

    def fits() -> bool:
        try:
            with granted(lab, size=memory, core=10, name="later") as container:
                return probe(container).held_to(memory)
        except CriError as error:
            assert "insufficient free capacity" in str(error)
            return False

    lab.wait_until(fits, "room on the GPU")


@pytest.fixture
def fifths(lab: Lab) -> Iterator[list[Container]]:
    """Yield five running containers, each of its own pod and with a fifth of the GPU."""
    with contextlib.ExitStack() as pods:
        fifths = (granted(lab, size=FIFTH, core=20, name=f"fifth-{number}") for number in range(5))
        yield [pods.enter_context(each) for each in fifths]


def test_a_gpu_that_is_all_granted_refuses_more(lab: Lab, fifths: list[Container]) -> None:
    """The GPU stays full after a kill of the agent, and after one of the agent and containerd."""
    expect_full(lab, f"default/fifth-4/main {FIFTH}")
    lab.stop_agent(signal.SIGKILL)
    lab.start_agent()
    expect_full(lab)
    lab.containerd.stop(signal.SIGKILL)
    lab.stop_agent(signal.SIGKILL)
    lab.containerd.start()
    lab.start_agent()
    lab.cri.version()
    expect_full(lab)
    assert all(probe(container).held_to(FIFTH) for container in fifths)
    # An exited container that the kubelet keeps for its logs holds nothing.
    fifths[0].stop()
    expect_free(lab, FIFTH)


def test_in_a_rolling_update_no_two_agents_conflict(lab: Lab) -> None:
    """Containers are created all the time. Each is limited, or refused for a moment, but no
    creation fails by a conflict."""
    stop = threading.Event()
    outcomes: list[str] = []

    def keep_making() -> None:
        while not stop.is_set():
            try:
                with granted(lab, core=10, name="rolling") as container:
                    held = probe(container).held_to(HALF)
                    outcomes.append("limited" if held else "UNLIMITED")
            except CriError as error:
                outcomes.append(str(error))

    def wait_for_more(count: int, what: str) -> None:
        made = len(outcomes)
        lab.wait_until(lambda: len(outcomes) >= made + count, what)

    making = threading.Thread(target=keep_making)
    making.start()
    try:
        said = "another agent serves this node (pid="
        before = lab.agent_log.read_text().count(said)
        lab.start_agent_beside()
        lab.wait_until(lambda: lab.agent_log.read_text().count(said) > before, "it to wait")
        wait_for_more(2, "containers beside two agents")
        assert set(outcomes) == {"limited"}
        ready = lab.times_ready()
        lab.stop_agent()
        lab.wait_until(lambda: lab.times_ready() > ready, "the newcomer to take over")
        wait_for_more(3, "containers by the newcomer")
    finally:
        stop.set()
        making.join()
    assert outcomes[-1] == "limited"
    refusals = [outcome for outcome in outcomes if outcome != "limited"]
    assert all("required plugin" in text or "validator plugin" in text for text in refusals)


def test_idle_and_hostile_clients_of_the_socket_delay_the_agent_and_no_more(lab: Lab) -> None:
    """containerd accepts plugins one at a time, and waits 5 s for each to send its name."""
    lab.stop_agent()
    with contextlib.ExitStack() as clients:
        for said in (b"", b"\xff" * 64, b"\x00\x00\x00\x02\x7f\xff\xff\xff"):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(lab.containerd.paths.nri_socket))
            client.sendall(said)
        lab.start_agent()
        expect_free(lab)
