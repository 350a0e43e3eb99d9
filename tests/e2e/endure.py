"""`python -m tests.e2e.endure`, `make endure`: a long run of a crowd of pods on a whole cluster.

    calm     50 pods come and go in random order
    kills    the same, while containerd, kubelet, the node agent and the extender are killed (-9)
             over and over, in random order
    down     make cluster-down, which leaves nothing
    all      a second cluster, all of whose processes are killed, then make cluster-down

Every pod's containers check their limits throughout, and their output is evaluated
(tests/load/crowd.py). When all pods are deleted the node is as it was before the first, and no
share is granted any more. Exit status 1 if any of this fails; the table is written if all of it
holds.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from lab.cluster.directory import ClusterDirectory
from tests.e2e.endurance import Endurance
from tests.e2e.whole import Whole
from tests.load import report
from tests.load.generator import LoadError
from tests.load.report import say
from tests.support import ROOT

GPUS: Final = "8x23040Mi"
_PHASES: Final = ("calm", "kills", "down", "all")


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
    parser.add_argument("--gpus", default=GPUS)
    parser.add_argument("--seed", type=int, default=None, help="one that is printed, by default")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where the table is written")
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = random.randrange(1 << 32)
    say(f"seed {options.seed}: {' '.join(arguments)}")
    run = _Run(options)
    try:
        run.all_phases()
    except AssertionError as error:
        say(f"failed: {error}")
        return 1
    finally:
        sys.stdout.write(run.summary.text())
    if options.results:
        today = datetime.datetime.now(datetime.UTC).date()
        (options.results / f"endurance-{today}.md").write_text(run.summary.text())
    return 0


class _Run:
    """Runs the requested phases, one after the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._phases = options.phases or _PHASES
        self._chance = random.Random(options.seed)
        self.summary = report.Report(options.seed, options.pods, options.gpus)

    def all_phases(self) -> None:
        """Raises LoadError; phases that passed until then are reported all the same."""
        options, summary = self._options, self.summary
        if {"calm", "kills", "down"} & set(self._phases):
            with self._up() as endurance:
                if "calm" in self._phases:
                    about = f"calm, {options.minutes:g} min"
                    summary.enter(about, endurance.calm(options.minutes * 60))
                if "kills" in self._phases:
                    about = f"each killed {options.kills} times"
                    summary.enter(about, endurance.kills(options.kills))
        if "all" in self._phases:
            with self._up() as endurance:
                summary.enter("all processes killed", endurance.kill_processes())

    @contextlib.contextmanager
    def _up(self) -> Iterator[Endurance]:
        whole = Whole(self._options.gpus)
        whole.up()
        say(f"a cluster is up in {whole.directory}")
        try:
            yield Endurance(whole, self._chance, self._options.pods, say)
        except BaseException:
            _keep(whole)
            whole.command("down")
            raise
        self._down(whole)

    def _down(self, whole: Whole) -> None:
        directory = ClusterDirectory(whole.directory)
        status = directory.read_status()
        done = whole.command("down")
        if done.returncode != 0:
            raise LoadError(done.stderr)
        if left := directory.left(status):
            raise LoadError("left on the machine:\n" + "\n".join(left))
        say("the cluster is down, and nothing of it is left")


def _keep(whole: Whole) -> None:
    """Copies the logs of a failed run before the cluster is removed."""
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
