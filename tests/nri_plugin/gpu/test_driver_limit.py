"""The driver's memory limits: set at a container's start, kept set, and reported."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract import names
from nri_plugin.gpu.driver_limit import DriverLimits
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.gpu.nvml_process import Answers
from nri_plugin.metrics import Metrics
from nri_plugin.policy import ledger, memory_limits
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.memory_limits import MIG_MODE, Limits, MemoryLimits
from nri_plugin.policy.model import Gpu, Pod, Share
from nri_plugin.policy.notices import Notices
from nri_plugin.policy.refusals import ChildError, Reason, Refused
from nri_plugin.settings import Settings
from tests.nri_plugin import fake_nvml
from tests.support import until_async

UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
GPU = Gpu(UUID, 0, 40 << 30, bus_id="0000:3b:00.0")
MOST = 5 << 30
ID = "c0" * 32
UNLIMITED = 2**64 - 1


@pytest.mark.parametrize(
    ("limits", "driver", "has_calls", "is_v2", "problem", "why"),
    [
        ("auto", "615.71.01", True, True, "", ""),
        ("auto", "", False, True, "", "not reported"),
        ("auto", "580.65.06", False, True, "", "580.65.06: must be 615 or newer"),
        ("auto", "615.71.01", True, False, "", "/cg: must be a hierarchy of cgroup v2"),
        ("auto", "615.71.01", True, True, MIG_MODE, ""),
        ("driver", "615.71.01", True, True, MIG_MODE, f"{UUID}: MIG mode must be disabled"),
        ("driver", "615.71.01", True, True, "lost", ""),
    ],
)
def test_where_the_driver_can_limit(
    limits: str, driver: str, has_calls: bool, is_v2: bool, problem: str, why: str
) -> None:
    gpus = [Gpu(UUID, 0, 1, problem=problem)]
    chosen = MemoryLimits(limits)
    said = memory_limits.unavailable(chosen, driver, has_calls, "/cg", is_v2, gpus)
    assert bool(said) == bool(why) and why in said
    assert Limits(chosen, said).in_force == ("library" if why else "driver")
    assert Limits(MemoryLimits.LIBRARY, said).in_force == "library"
    text = Limits(chosen, said).text
    assert text.startswith("memory limits: library" if why else "memory limits: library and driver")
    assert said in text


@pytest.mark.parametrize(
    ("line", "problem", "changed"),
    [
        ({"limits": {"/g": [MOST, MOST]}}, "", False),
        ({"limits": {"/g": [UNLIMITED, MOST]}}, "", True),
        ({"limits": {"/g": [MOST, MOST - 4096]}}, "", True),
        ({"limits": {"/g": [MOST, MOST + 1]}}, "reports", False),
        ({"limits": {"/g": [MOST, UNLIMITED]}}, "reports", False),
        ({"limits": {"/g": "Not Found"}}, "Not Found", False),
        ({"limits": {}}, "did not answer", False),
        ({"error": "GPU is lost"}, "GPU is lost", False),
        (None, "did not answer", False),
    ],
)
def test_what_the_driver_answers(line: Any, problem: str, changed: bool) -> None:
    said, was_other = memory_limits.problem(line, "/g", MOST)
    assert bool(said) == bool(problem) and problem in said and was_other is changed


class Scene:
    """A container in a made-up control group, and a stand-in for NVML's process."""

    def __init__(self, tmp_path: Path, mode: MemoryLimits) -> None:
        self.root = tmp_path / "cgroup"
        self.group = self.root / "kubepods" / ID
        self.group.mkdir(parents=True)
        (tmp_path / "init").mkdir()
        (tmp_path / "init/cgroup").write_text(f"0::/kubepods/{ID}\n")
        self.limits, self.answers = tmp_path / "limits.json", tmp_path / "answers.json"
        self.answer()
        self.known()
        settings = Settings(
            *(Path("/"), "50", tmp_path, Path("/"), (), Path("/"), {}),
            memory_limits=mode,
            cgroup_root=self.root,
        )
        self.inventory = Inventory(
            {}, command=(*fake_nvml.PROGRAM, str(self.answers)), min_interval_s=0
        )
        self.metrics, self.notices = Metrics(), Notices()
        self.holds: list[Hold] = [_hold()]
        self.lacks = ""
        self.driver_limits = DriverLimits(
            settings,
            self.inventory,
            self.metrics,
            self.notices,
            lambda: self.holds,
            lambda container_id: tmp_path / "init" if container_id == ID else tmp_path / "absent",
            lambda: self.lacks,
        )

    def answer(self, **more: Any) -> None:
        gpu = {"uuid": UUID, "minor": 0, "memory_bytes": 40 << 30, "bus_id": "0000:3b:00.0"}
        known = {"gpus": [gpu], "has_limits": True, "limits": str(self.limits), **more}
        self.answers.write_text(json.dumps(known))

    def known(self, answer: object = None) -> None:
        """Let the driver answer this for the container's group."""
        beside = self.limits.with_suffix(".known")
        beside.write_text(json.dumps({str(self.group): answer} if answer else {}))
        beside.rename(self.limits)

    @property
    def asked(self) -> list[Any]:
        return json.loads(self.limits.read_text()).get("asked", [])  # type: ignore[no-any-return]

    def in_force(self) -> set[str]:
        (metric,) = self.metrics.limits_info.collect()
        return {sample.labels["limits"] for sample in metric.samples}

    def events(self) -> list[str]:
        first = self.notices.first()
        return [first.reason] if first else []


def _hold(container_id: str = ID, adjusted: bool = True) -> Hold:
    share = Share(UUID, 0, MOST, 100, uncapped=True)
    made = ledger.hold(container_id, "key", Pod("uid", "ns", "pod"), "main", [share])
    return made if adjusted else replace(made, adjusted=False)


@asynccontextmanager
async def running(tmp_path: Path, mode: str = "auto") -> AsyncIterator[Scene]:
    scene = Scene(tmp_path, MemoryLimits(mode))
    await scene.inventory.refresh()
    assert scene.inventory.has_limits
    try:
        yield scene
    finally:
        await scene.inventory.close()


async def _starts(scene: Scene) -> bool:
    """Start the container. Repeat it where the machine was too slow for the deadline."""
    for _ in range(10):
        in_force = await scene.driver_limits.starts(ID)
        if in_force:
            break
    return in_force


async def test_a_start_sets_the_grant_on_the_containers_own_group(tmp_path: Path) -> None:
    async with running(tmp_path) as scene:
        assert await _starts(scene)
        assert scene.asked[0] == [UUID, {str(scene.group): MOST}]
        assert scene.in_force() == {"driver"}


async def test_the_library_alone_asks_the_driver_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, "library") as scene:
        assert not await scene.driver_limits.starts(ID)
        await scene.driver_limits.look()
        assert scene.asked == [] and scene.in_force() == {"library"} and not scene.events()


@pytest.mark.parametrize("cause", ["error", "read back", "hang", "no group"])
@pytest.mark.parametrize("mode", ["auto", "driver"])
async def test_a_failed_set(tmp_path: Path, cause: str, mode: str) -> None:
    """The library's limit remains under `auto`, with an event. The start fails under `driver`."""
    async with running(tmp_path, mode) as scene:
        if cause == "hang":
            scene.answer(hang=True)
        elif cause == "no group":
            (scene.root.parent / "init/cgroup").write_text("0::/elsewhere")
        else:
            scene.known("Not Found" if cause == "error" else [MOST, UNLIMITED])
        if mode == "driver":
            with pytest.raises(Refused) as refused:
                await scene.driver_limits.starts(ID)
            assert refused.value.refusal.reason is Reason.DRIVER_LIMIT
            return
        assert not await scene.driver_limits.starts(ID)
        assert scene.in_force() == {"library"}
        assert scene.events() == [names.EVENT_DRIVER_LIMIT_NOT_SET]


async def test_a_node_without_it_keeps_the_librarys_limit_and_says_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as scene:
        scene.lacks = "driver: invalid version 580"
        assert not await scene.driver_limits.starts(ID)
        await scene.driver_limits.look()
        assert scene.in_force() == {"library"} and not scene.events() and scene.asked == []
        scene.lacks = ""  # the driver was replaced
        await scene.driver_limits.look()
        assert scene.in_force() == {"driver"}


async def test_a_look_sets_again_what_is_missing(tmp_path: Path) -> None:
    async with running(tmp_path) as scene:
        assert await _starts(scene)
        scene.known([UNLIMITED, MOST])
        await scene.driver_limits.look()
        assert scene.metrics.limits_restored._value.get() == 1
        assert scene.in_force() == {"driver"} and not scene.events()
        scene.known("GPU is lost")
        await scene.driver_limits.look()
        assert scene.in_force() == {"library"}
        assert scene.events() == [names.EVENT_DRIVER_LIMIT_NOT_SET]


async def test_a_container_that_does_not_run_is_left_out(tmp_path: Path) -> None:
    """One that is being created has no process, one that no agent adjusted has no GPU."""
    async with running(tmp_path) as scene:
        scene.holds = [_hold("e0" * 32), _hold("f0" * 32, adjusted=False)]
        await scene.driver_limits.look()
        assert scene.asked == [] and not scene.events() and scene.in_force() == {"library"}
        scene.holds = []
        await scene.driver_limits.look()
        assert scene.in_force() == set()


@pytest.mark.parametrize(
    ("ends", "waits_s"),
    [(False, [30] * 8), (True, [2, 4, 8, 16, 30, 30, 30, 30])],
    ids=["NVML works", "a look ends NVML's process"],
)
async def test_the_time_from_a_look_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool, waits_s: list[float]
) -> None:
    async with running(tmp_path) as scene:
        scene.inventory.driver = "615.71.01"
        now_s, looks = 0.0, list[float]()

        @asynccontextmanager
        async def timeout(time_s: float) -> AsyncIterator[None]:
            nonlocal now_s
            if not scene.driver_limits._due.is_set():
                now_s += time_s
                raise TimeoutError
            yield

        async def ask(*_: object) -> Answers:
            looks.append(now_s)
            if len(looks) > 8:
                raise asyncio.CancelledError
            await asyncio.sleep(0)
            if not ends:
                return Answers({}, {0: {"limits": {str(scene.group): [MOST, MOST]}}})
            scene.inventory.nvml.on_start()
            raise ChildError("NVML exited with status 139")

        scene.driver_limits._timeout = timeout
        monkeypatch.setattr(scene.inventory.nvml, "ask", ask)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(scene.driver_limits.run(), 30)
    assert [after - before for before, after in pairwise(looks)] == waits_s


async def test_it_looks_again_after_a_synchronize_and_after_nvml_was_loaded(tmp_path: Path) -> None:
    async with running(tmp_path) as scene:
        task = asyncio.create_task(scene.driver_limits.run())
        try:
            for again in (scene.driver_limits.look_soon, scene.inventory.close):
                await until_async(lambda: scene.asked)
                scene.known()
                waits = again()
                if waits is not None:
                    await waits
                    await scene.inventory.refresh()
            await until_async(lambda: scene.asked)
        finally:
            task.cancel()
            await asyncio.wait([task])
