"""`make demo`: the pod of Koordinator's document, unmodified, from kubectl to the limit.

Starts a cluster of its own, runs one story on it, and verifies each check as it prints it; then
removes the cluster. While Kubernetes is still being built, the story of one node runs first. Exit
status 1 if a check fails, 130 after a ^C. `--keep` leaves the cluster running. `--picture`
writes what the run prints into docs/demo.md.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final, TextIO

from lab.cluster.directory import ClusterDirectory, add_option
from lab.cluster.marked_directory import DirectoryError
from lab.demo import node, sample, seed, story
from lab.demo.background_builds import BackgroundBuilds
from lab.demo.live import Live
from lab.demo.report import Report
from lab.demo.stage import StageError
from lab.node import network

DIRECTORY: Final = "/tmp/gpuslice-demo"
DOCUMENT: Final = seed.ROOT / "docs" / "demo.md"


def perform(stage: Live, report: Report, where: Path, kept: bool) -> int:
    """Run the story; return the exit status."""
    try:
        story.run(report, stage, where)
        if not kept:
            story.end(report, stage)
    except StageError as error:
        report.check("the demo completes", False, error)
    return report.end()


def _live(out: TextIO, where: Path, plain: bool, kept: bool) -> int:
    with BackgroundBuilds() as builds, Live(ClusterDirectory(where), builds.wait) as live:
        if builds.is_building and node.perform(sys.stdout, plain, masked=False) != 0:
            return 1
        code = perform(live, Report(out, plain, masked=False), where, kept)
        if kept and live.is_up:
            live.let_go()
            out.write(_to_play(ClusterDirectory(where), live.kubectl))
    return code


def _to_play(directory: ClusterDirectory, kubectl: Path) -> str:
    proxy = f" NO_PROXY={network.ADDRESSES}" if network.proxied(os.environ) else ""
    kubeconfig = shlex.quote(str(directory.kubeconfig))
    lines = (
        f"It goes on, in {directory.path}. To try:",
        f"  export KUBECONFIG={kubeconfig}{proxy}; alias kubectl={shlex.quote(str(kubectl))}",
        f"  kubectl exec -it {story.LAST} -- bash     # and in it: nvidia-smi, cuda-probe",
        f"  kubectl describe pod {story.LAST}         # its annotations, and its events",
        f"  kubectl delete pod {story.LAST} --grace-period=1",
        f"To end it: make cluster-down{directory.advice}",
    )
    return "\n".join(["", *lines, ""])


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.demo", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--plain", action="store_true", help="no colours, 80 columns")
    add_option(parser, DIRECTORY)
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--keep", action="store_true", help="leave the cluster up at the end")
    end.add_argument("--picture", action="store_true", help="write the output into docs/demo.md")
    given = parser.parse_args(arguments)
    if os.geteuid() != 0:
        sys.stderr.write("demo: namespaces and containerd need root: sudo make demo\n")
        return 1
    signal.signal(signal.SIGTERM, _interrupt)
    out = io.StringIO() if given.picture else sys.stdout
    try:
        code = _live(out, given.at, given.plain or given.picture, given.keep)
    except (DirectoryError, StageError) as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    except KeyboardInterrupt as interrupt:
        sys.stderr.write("\ndemo: interrupted; all that it started is removed\n")
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
    if isinstance(out, io.StringIO):
        printed = sample.plain(out.getvalue())
        sys.stdout.write(printed)
        if code == 0:
            text = sample.placed(DOCUMENT.read_text(), "demo", "make demo", printed)
            DOCUMENT.write_text(text)
    return code
