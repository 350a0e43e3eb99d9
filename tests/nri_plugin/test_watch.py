"""The look at the node beside the requests: what it lacks, and that it is seen when it comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import pytest

from nri_plugin import watch as module
from nri_plugin.metrics import Metrics
from nri_plugin.model import Card, CdiDevice, Paths, Specs
from nri_plugin.readiness import Readiness

CARD = Card("GPU-a", 0, 1 << 30)
WHOLE = Specs({"GPU-a": CdiDevice("GPU-a", "/cdi/a.json")})
PATHS = Paths("/run", "/lib.so")


class Node:
    """A node as a test sets it."""

    def __init__(self) -> None:
        self.cards: Sequence[Card] = (CARD,)
        self.cards_problem: str | None = None
        self.containers_with_grant = 2
        self.host = (WHOLE, PATHS)
        self.late = False
        self.asked = 0

    async def look_at_host(self) -> tuple[Specs, Paths]:
        if self.late:
            raise TimeoutError
        return self.host

    async def ask_for_cards(self) -> None:
        self.asked += 1


def looked(node: Node) -> Sequence[str]:
    return asyncio.run(module.look(node))


def test_a_whole_node_lacks_nothing() -> None:
    node = Node()
    assert looked(node) == []
    assert node.asked == 0


@pytest.mark.parametrize(
    ("specs", "paths", "problem"),
    [
        (WHOLE, Paths("/run", None, "/x.so: gone"), "the library is missing: /x.so: gone"),
        (Specs(), PATHS, "card GPU-a has no CDI device"),
        (Specs({}, ("/f: bad",)), PATHS, "card GPU-a has no CDI device (unreadable: /f: bad)"),
        (
            Specs({"GPU-a": CdiDevice("GPU-a", "/f", problem="no /dev/x")}),
            PATHS,
            "CDI device of card GPU-a in /f: no /dev/x",
        ),
    ],
)
def test_what_is_missing_is_named(specs: Specs, paths: Paths, problem: str) -> None:
    node = Node()
    node.host = specs, paths
    assert looked(node) == [problem]


def test_cards_are_asked_for_again_while_unknown() -> None:
    node = Node()
    node.cards_problem = "NVML: no driver"
    assert looked(node) == ["this node's cards are not known: NVML: no driver"]
    node.cards_problem, node.cards = None, ()
    assert looked(node) == ["the driver shows no card on this node"]
    assert node.asked == 2


def test_files_that_hang_are_a_problem() -> None:
    node = Node()
    node.late = True
    assert "could not be read in time" in looked(node)[0]


def test_it_goes_on_looking(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(module, "BEAT_S", 0.001)
    readiness, metrics, node = Readiness(lambda: 0.0), Metrics(), Node()
    readiness.session = None
    node.host = WHOLE, Paths("/run", None, "gone")

    async def until(condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.001)

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(name)

    async def test() -> None:
        watching = asyncio.create_task(module.watch(node, readiness, metrics))
        await until(lambda: list(readiness.node) == ["the library is missing: gone"])
        assert value("gpuslice_ready") == 0
        node.host = WHOLE, PATHS
        await until(lambda: value("gpuslice_ready") == 1)
        watching.cancel()
        await asyncio.wait([watching])

    asyncio.run(test())
    assert value("gpuslice_cards") == 1
    assert value("gpuslice_containers_with_grant") == 2
    assert caplog.messages[-1] == "ready"
    assert any(line.startswith("not ready") for line in caplog.messages)
