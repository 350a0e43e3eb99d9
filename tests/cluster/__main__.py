"""`python -m tests.cluster` (`make storm`) runs the complete storms for some twenty minutes.

Each storm creates 1,000 pods on 100 nodes of 8 GPUs, then deletes 300 and creates 300. Storms run
without faults, with the extender killed 50 times (each 1 to 10 s after it was ready), with
kube-scheduler killed every 30 s, with kube-apiserver frozen for up to 20 s, and beside a second
installation. The exit status is 1 if the accounts are wrong, or if a pod that fits waits for more
than 30 s.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from lab.cluster.api import connected
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from tests.cluster.installing import install
from tests.cluster.running import running
from tests.load import report
from tests.load.generator import Figures, LoadError
from tests.load.report import say
from tests.load.storm import Disturbance, Storm, pass_over
from tests.support import ROOT

_NODES: Final = 100
_DISTURBANCES: Final = {
    "calm": Disturbance("calm"),
    "extender": Disturbance("the extender killed 50 times", extender_kills=50),
    "kube-scheduler": Disturbance(
        "kube-scheduler killed every 30 s, 6 times",
        kube_scheduler_every_s=30.0,
        lasts_s=185.0,
        lease_s=4,
    ),
    "apiserver": Disturbance("kube-apiserver frozen 10 times, for 1 to 20 s", apiserver_freezes=10),
    "second": Disturbance(
        "a second installation, the extender killed 10 times", extender_kills=10, second=True
    ),
}
_CONDITIONS: Final = """# A thousand pods at once, whole

`make storm`, {today}: real etcd, kube-apiserver and kube-scheduler, the
manifests' own RBAC and policies, {nodes} nodes of 8 GPUs, 1,000 pods that want more than there is;
then 300 go and 300 come. While programs are killed, 40 go and as many come each second. At every
look the grants are added up by GPU, by another program than ours. {cpus} shared cores,
{system.sysname} {system.release}.

"""
_HEAD: Final = (
    *("disturbance", "pods made", "bound", "kills", "looks", "over"),
    *("longest wait of a pod that fitted", "requeued", "took"),
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument(
        "disturbance", nargs="*", choices=[[], *_DISTURBANCES], help="all, if none is given"
    )
    parser.add_argument("--seed", type=int, default=6, help="of the random choices")
    results = ROOT / "bench" / "results"
    parser.add_argument("--results", type=Path, default=results, help="directory of the table")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.disturbance or _DISTURBANCES:
        disturbance = _DISTURBANCES[name]
        say(disturbance.about)
        try:
            rows.append(_row(disturbance, _whole(disturbance, options.seed)))
        except (LoadError, ExceptionGroup) as error:
            say(f"failed: {error!r}")
            return 1
    today = datetime.datetime.now(datetime.UTC).date()
    path = options.results / f"storm-{today}.md"
    conditions = _CONDITIONS.format(
        today=today, nodes=_NODES, cpus=os.cpu_count(), system=os.uname()
    )
    path.write_text(conditions + report.table(_HEAD, rows))
    sys.stdout.write(f"{path}\n")
    return 0


def _whole(disturbance: Disturbance, seed: int) -> Figures:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuslice-storm-"))
        plane = stack.enter_context(ControlPlane(Path(directory) / "plane"))
        install(plane)
        stack.enter_context(Fleet(plane, Shape(nodes=_NODES).all_nodes()))
        installation = stack.enter_context(running(plane, lease_s=disturbance.lease_s))
        if disturbance.second:
            stack.enter_context(running(plane, "mistake", hostname="mistake", elects=False))

        async def run_storm() -> Figures:
            async with connected(plane.kubeconfig()) as api:
                storm = Storm(api, random.Random(seed))
                await pass_over(storm, disturbance, installation, plane.apiserver, log=say)
                return storm.figures

        return asyncio.run(run_storm())


def _row(disturbance: Disturbance, figures: Figures) -> Sequence[str]:
    """Return a storm's row. A storm that overcommits a GPU fails and has no row."""
    return (
        disturbance.about,
        f"{figures.made:,}",
        f"{figures.bound:,}",
        str(figures.kills.total()),
        str(figures.looks_at_books),
        "none",
        f"{figures.longest_wait_s:.1f} s (at most {Storm.timeout_s:.0f})",
        str(figures.requeued),
        f"{figures.took_s:.0f} s",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
