"""The table of a load's run, in Markdown, and progress on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from tests.load.generator import Figures

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

    def enter(self, phase: str, figures: Figures) -> None:
        counts = (figures.made, figures.ran, figures.most_at_once, figures.looks_inside)
        more = (figures.looks_at_books, figures.short, figures.restarts)
        shown = (f"{count:,}" for count in (*counts, *more))
        self._rows.append((phase, *shown, f"{figures.longest_wait_s:.1f} s"))

    def text(self) -> str:
        return self._conditions + table(_HEAD, self._rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def say(text: str) -> None:
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S}  {text}\n")
