"""The tables of a load's run, in Markdown, and progress on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from tests.load.generator import Figures

_CONDITIONS: Final = """# Pods that come and go on a whole cluster

`make endure`, {today}, seed {seed}: all of `make cluster`, with etcd, kube-apiserver,
kube-controller-manager, kube-scheduler and kubelet 1.36 and containerd 2.4; GPUs: {gpus},
simulated; up to {pods} pods at once, made and deleted in random order, of nine kinds: from 7
percent of a GPU to two containers, and two GPUs. {cpus} cores, Linux {release}.
"""
_CROWD: Final = """
Every four seconds, until it goes, each container takes all that it may of its GPU, tries to take
more, and reads what `nvidia-smi`, its environment and its grant say; every line of that was judged.
At each look at the API server the grants were added up by another program than ours. A GPU is
short where the programs of a pod that has just gone had not given all of its share back: a program
got less than its limit there. Containers that were started again were so before they first ran.
What is left on the node after kills is containerd's own: begun, and not noted yet, when it was
killed.

"""
_HEAD: Final = (
    *("phase", "pods made", "ran", "most at once", "looks inside, all right", "accounting checks"),
    *("looks at a short GPU", "containers started again", "longest between two looks"),
    "left on the node",
)
_WAITS: Final = ("phase", "killed", "times", "pods that fitted then", "p50", "p99", "max")
_WAITS_ARE: Final = """
How long pods waited until all their containers ran: from their coming, from when there was room, or
from the kill, whichever was last. A pod counts with the last kill that came while it waited, or
less than 10 s before. Looks are a second apart.

"""


_ENDS: Final = ("`make cluster-down`", "left on the machine")
_ENDS_ARE: Final = """
Compared with the machine before the cluster: processes, namespaces, mounts, interfaces, routes,
listening ports, unix sockets, packet filters, shared memory, kernel settings, device nodes, cgroups
and all files but those of the cache of programs.

"""


class Report:
    """A phase with any error has no row."""

    def __init__(self, seed: int, pods: int, gpus: str) -> None:
        self._conditions = _CONDITIONS.format(
            today=datetime.now(UTC).date(),
            seed=seed,
            gpus=gpus,
            pods=pods,
            cpus=os.cpu_count(),
            release=os.uname().release,
        )
        self._rows: list[Sequence[str]] = []
        self._waits: list[Sequence[str]] = []
        self._ends: list[Sequence[str]] = []

    def enter(self, phase: str, figures: Figures) -> None:
        self._rows.append(
            (
                *(phase, f"{figures.made:,}", f"{figures.ran:,}", str(figures.most_at_once)),
                *(f"{figures.looks_inside:,}", f"{figures.looks_at_books:,}"),
                *(
                    str(figures.short),
                    str(figures.restarts),
                    f"{figures.silence_s:.0f} s",
                    "nothing",
                ),
            )
        )
        for killed, waits_s in sorted(figures.waits_s.items()):
            times = str(figures.kills[killed]) if killed else "-"
            worst = (_rank(waits_s, share) for share in (0.5, 0.99, 1.0))
            shown = (f"{wait:.1f} s" for wait in worst)
            self._waits.append((phase, killed or "nothing", times, str(len(waits_s)), *shown))

    def ended(self, when: str) -> None:
        self._ends.append((when, "nothing"))

    def text(self) -> str:
        parts = (
            _table(_CROWD, _HEAD, self._rows),
            _table(_WAITS_ARE, _WAITS, self._waits),
            _table(_ENDS_ARE, _ENDS, self._ends),
        )
        return self._conditions + "".join(parts)


def _rank(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _table(about: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Nothing if there are no rows."""
    return about + table(head, rows) if rows else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def say(text: str) -> None:
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S}  {text}\n")
