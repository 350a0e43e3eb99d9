"""`python -m tests.e2e.endure`, `make endure`: a long run of many pods on a whole cluster.

    calm     50 pods come and go in random order
    kills    the same, while containerd, kubelet, the node agent and the extender are killed (-9)
             over and over, in random order
    down     make cluster-down, which leaves nothing
    all      a second cluster, all of whose processes are killed, then make cluster-down

Throughout, every container checks its limit, and tests/load/crowd.py evaluates the output. After
all pods are deleted, the node must be in the state before the first pod, without any granted share.
The exit status is 1 if any check fails. The table is written only if every check holds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import os
import random
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from lab.cluster.api import connected
from lab.cluster.directory import ClusterDirectory
from tests.e2e.node import Node
from tests.e2e.whole import Whole
from tests.load import report
from tests.load.crowd import Crowd
from tests.load.generator import Figures, LoadError
from tests.load.report import say
from tests.support import ROOT, until

_PHASES: Final = ("calm", "kills", "down", "all")
_KILLED: Final = ("containerd", "kubelet", "gpuslice node agent", "gpuslice extender")
_PACE_S: Final = (0.3, 1.5)
"""Interval between two creations or deletions of pods."""
_KILL_AFTER_S: Final = (1.0, 8.0)
"""The time between the recovery of one component and the kill of the next."""
_SPREAD: Final = 0.7
"""The minimum number of pods at a time, as a fraction of the maximum."""
_CALM_EVERY_KILLS: Final = 10
_BACK_S: Final = 90.0
_CLEAN_S: Final = 240.0
_OF_CONTAINERD: Final = re.compile(
    r"\+ (process: \S+/containerd-shim-runc-v2 .*"
    r"|unix socket: \S+/s/\w+"
    r"|mount: /run/netns/cni-\S+ \(nsfs.*)"
)
"""Shims without a container, with their sockets and network namespaces. A containerd that is killed
before it has recorded a shim leaves them for ever. A shim that still has a container is no such
remainder: the container's process has another name."""
_MIDDLE_S: Final = (15.0, 40.0)


class Endurance:
    """A cluster, and its pods while faults are injected. most: the maximum of pods at a time."""

    def __init__(self, whole: Whole, chance: random.Random, most: int) -> None:
        self._whole = whole
        self._chance = chance
        self._most = most
        self._node = Node(whole)

    def calm(self, lasts_s: float) -> Figures:
        return self._to_the_end(lambda crowd: asyncio.sleep(lasts_s))

    def kills(self, each: int) -> Figures:
        async def kill(crowd: Crowd) -> None:
            parts = [part for part in _KILLED for _ in range(each)]
            self._chance.shuffle(parts)
            for number, part in enumerate(parts, 1):
                await asyncio.sleep(self._chance.uniform(*_KILL_AFTER_S))
                before = self._whole.pid(part)
                crowd.killed(part)
                self._whole.kill(before)
                await asyncio.to_thread(self._whole.until_back, part, before, _BACK_S)
                say(f"killed: {part}; {len(crowd)} pods there, {_so_far(crowd.figures)}")
                if number % _CALM_EVERY_KILLS == 0:
                    await crowd.calm()

        return self._to_the_end(kill)

    def kill_processes(self) -> Figures:
        """Kill all processes of the cluster, while pods come and go."""

        async def middle(crowd: Crowd) -> None:
            await asyncio.sleep(self._chance.uniform(*_MIDDLE_S))

        figures = asyncio.run(self._during(middle, until_gone=False))
        processes = self._whole.marked()
        for pid in processes:
            # the process ended because another one was killed
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        say(f"killed {len(processes)} processes")
        return figures

    def _to_the_end(self, task: Callable[[Crowd], Awaitable[None]]) -> Figures:
        figures = asyncio.run(self._during(task, until_gone=True))
        self._wait_until_clean(figures)
        return figures

    async def _during(self, task: Callable[[Crowd], Awaitable[None]], until_gone: bool) -> Figures:
        """Create and delete pods during the task. If `until_gone`, delete all pods at its end."""
        async with connected(self._whole.directory / "kubeconfig") as api:
            crowd = Crowd(api, self._chance)
            await crowd.come(self._most)
            running = (task(crowd), self._come_and_go(crowd), _look(crowd), _read(crowd))
            tasks = [asyncio.ensure_future(each) for each in running]
            done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in others:
                each.cancel()
            await asyncio.wait(tasks)
            for each in done:
                each.result()
            if until_gone:
                await crowd.calm()
                say(f"all that fit run; {_so_far(crowd.figures)}; now all go")
                await crowd.clear()
        return crowd.figures

    def _wait_until_clean(self, figures: Figures) -> None:
        """Wait until pods have left nothing on the node. The node removes the rest of a pod a
        moment after the API server removes the object. Containers that never started, because
        containerd was killed, are removed after two minutes."""
        left: Sequence[str] = ()

        def clean() -> bool:
            nonlocal left
            left = self._node.left()
            if figures.kills[_KILLED[0]]:
                left = [line for line in left if not _OF_CONTAINERD.fullmatch(line)]
            return not left

        try:
            until(clean, "the node is as it was", _CLEAN_S)
        except AssertionError as error:
            raise LoadError("pods have left on the node:\n" + "\n".join(left)) from error

    async def _come_and_go(self, crowd: Crowd) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(*_PACE_S))
            there = len(crowd)
            if there < self._most * _SPREAD or (there < self._most and self._chance.random() < 0.5):
                await crowd.come(1)
            else:
                await crowd.go()


async def _look(crowd: Crowd) -> None:
    said_s = time.monotonic()
    while True:
        await crowd.look()
        await asyncio.sleep(1.0)
        if time.monotonic() - said_s > 30:
            said_s = time.monotonic()
            say(f"{len(crowd)} pods there, {_so_far(crowd.figures)}")


async def _read(crowd: Crowd) -> None:
    while True:
        await crowd.read()
        await asyncio.sleep(0.3)


def _so_far(figures: Figures) -> str:
    return (
        f"{figures.made} made, {figures.ran} ran, {figures.looks_inside} looks inside, "
        f"{figures.kills.total()} kills"
    )


# --- the command

_CONDITIONS: Final = """# Pods that come and go on a whole cluster

`make endure`, {today}, seed {seed}: all of `make cluster`; GPUs: {gpus}, simulated; up to {pods}
pods at once, made and deleted in random order, of nine kinds: from 7 percent of a GPU to two
containers, and two GPUs. {cpus} cores, Linux {release}.

Every four seconds, until it goes, each container takes all that it may of its GPU, tries to take
more, and reads what `nvidia-smi`, its environment and its grant say; every line of that was judged.
At each look at the API server the grants were added up by another program than ours. A GPU is
short where the programs of a pod that has just gone had not given all of its share back: a program
got less than its limit there. Containers that were started again were so before they first ran.
After the last pod nothing was left on the node but what containerd had begun, and not noted, when
it was killed. After `make cluster-down` nothing was left on the machine.

"""
_HEAD: Final = (
    *("phase", "pods made", "ran", "most at once", "looks inside, all right", "accounting checks"),
    *("looks at a short GPU", "containers started again", "longest wait of a pod that fitted"),
)


class _Report:
    """The table of phases. A phase with any error has no row."""

    def __init__(self, seed: int, pods: int, gpus: str) -> None:
        machine = {"cpus": os.cpu_count(), "release": os.uname().release}
        today = datetime.datetime.now(datetime.UTC).date()
        self._conditions = _CONDITIONS.format(
            today=today, seed=seed, gpus=gpus, pods=pods, **machine
        )
        self._rows: list[Sequence[str]] = []

    def enter(self, phase: str, figures: Figures) -> None:
        shown = (
            *(figures.made, figures.ran, figures.most_at_once, figures.looks_inside),
            *(figures.looks_at_books, figures.short, figures.restarts),
        )
        counts = (f"{count:,}" for count in shown)
        self._rows.append((phase, *counts, f"{figures.longest_wait_s:.1f} s"))

    def text(self) -> str:
        return self._conditions + report.table(_HEAD, self._rows)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e.endure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("phases", nargs="*", choices=[[], *_PHASES], help="all, if none is given")
    parser.add_argument("--minutes", type=float, default=10.0, help="of calm; 10 by default")
    parser.add_argument("--kills", type=int, default=10, help="of each part; 10 by default")
    parser.add_argument("--pods", type=int, default=50, help="at once; 50 by default")
    parser.add_argument("--gpus", default="8x23040Mi")
    parser.add_argument("--seed", type=int, default=None, help="one that is printed, by default")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where the table is written")
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = random.randrange(1 << 32)
    say(f"seed {options.seed}: {' '.join(arguments)}")
    summary = _Report(options.seed, options.pods, options.gpus)
    try:
        _all_phases(options, summary)
    except AssertionError as error:
        say(f"failed: {error}")
        return 1
    finally:
        sys.stdout.write(summary.text())
    if options.results:
        today = datetime.datetime.now(datetime.UTC).date()
        (options.results / f"endurance-{today}.md").write_text(summary.text())
    return 0


def _all_phases(options: argparse.Namespace, summary: _Report) -> None:
    """Run all phases. If one raises LoadError, the phases before it are still reported."""
    phases, chance = options.phases or _PHASES, random.Random(options.seed)
    if {"calm", "kills", "down"} & set(phases):
        with _up(options, chance) as endurance:
            if "calm" in phases:
                figures = endurance.calm(options.minutes * 60)
                summary.enter(f"calm, {options.minutes:g} min", figures)
            if "kills" in phases:
                figures = endurance.kills(options.kills)
                summary.enter(f"each killed {options.kills} times", figures)
    if "all" in phases:
        with _up(options, chance) as endurance:
            summary.enter("all processes killed", endurance.kill_processes())


@contextlib.contextmanager
def _up(options: argparse.Namespace, chance: random.Random) -> Iterator[Endurance]:
    """Run a cluster during the block, and check that nothing of it is left afterwards."""
    whole = Whole(options.gpus)
    whole.up()
    say(f"a cluster is up in {whole.directory}")
    try:
        yield Endurance(whole, chance, options.pods)
    except BaseException:
        _keep(whole)
        whole.command("down")
        raise
    directory = ClusterDirectory(whole.directory)
    status = directory.read_status()
    done = whole.command("down")
    if done.returncode != 0:
        raise LoadError(done.stderr)
    if left := directory.left(status):
        raise LoadError("left on the machine:\n" + "\n".join(left))
    say("the cluster is down, and nothing of it is left")


def _keep(whole: Whole) -> None:
    """Copy the logs of a failed run before the cluster is removed."""
    kept = ROOT / "build" / "endure"
    kept.mkdir(parents=True, exist_ok=True)
    lab = Path(whole.state["directory"])
    for log in (*lab.glob("*.log"), *lab.glob("plane/*.log"), whole.directory / "cluster.log"):
        (kept / log.name).write_bytes(log.read_bytes())
    for what in (("get", "pods", "-o", "json"), ("get", "events"), ("get", "nodes", "-o", "json")):
        (kept / f"{what[1]}.txt").write_text(whole.try_kubectl(*what).stdout)
    say(f"logs are kept in {kept}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
