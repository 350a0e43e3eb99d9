"""`make demo`: the pod of Koordinator's document, unmodified, from kubectl to the limit.

Starts a cluster, runs the demo's chapters (story.py) on it, verifies each check as it prints it,
and removes the cluster. If Kubernetes must be built first, `make demo-node` runs meanwhile. The
exit status is 1 if a check fails, and 130 after ^C.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, TextIO

from lab.cluster.directory import ClusterDirectory, DirectoryError, add_option
from lab.demo import node, seed, story
from lab.demo.live import Live, StageError
from lab.demo.report import Report
from lab.node import network
from tools import kubernetes
from tools.building import ProgramsError
from tools.progress import step

_MODULES: Final = ("tools.kubernetes", "tools.images")
"""Modules that build what is missing, while `make demo-node`'s report is printed."""
DIRECTORY: Final = "/tmp/gpuslice-demo"
DOCUMENT: Final = seed.ROOT / "docs" / "examples" / "demo.md"
_BEGIN, _END = "<!-- demo:begin -->", "<!-- demo:end -->"


@contextmanager
def _missing_built() -> Iterator[Callable[[], None] | None]:
    """Start the build of missing programs. Yield a function that waits for it and may raise
    ProgramsError; None if nothing is missing. At the end, interrupt an unfinished build."""
    if kubernetes.find() is not None and kubernetes.find_helm() is not None:
        yield None
        return
    one_by_one = " && ".join(f'"$0" -m {module}' for module in _MODULES)
    with tempfile.TemporaryFile() as log:
        command = ["sh", "-c", one_by_one, sys.executable]
        build = subprocess.Popen(
            command, cwd=seed.ROOT, stdout=log, stderr=log, start_new_session=True
        )

        def wait() -> None:
            with step(f"building Kubernetes {kubernetes.VERSION}, etcd, Helm and the images, once"):
                code = build.wait()
            if code != 0:
                log.seek(0)
                raise ProgramsError(log.read().decode(errors="replace"))

        try:
            yield wait
        finally:
            if build.poll() is None:
                os.killpg(build.pid, signal.SIGINT)
                build.wait()


def _live(out: TextIO, where: Path, kept: bool) -> int:
    """Run the demo; return its exit status."""
    with _missing_built() as wait, Live(ClusterDirectory(where), wait) as live:
        if wait is not None and node.perform(sys.stdout) != 0:
            return 1
        report = Report(out)
        try:
            story.run(report, live, where)
            if not kept:
                story.end(report, live)
        except StageError as error:
            report.check("the demo completes", False, error)
        code = report.end()
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


def _picture(document: str, printed: str) -> str:
    """The document's text with the output of this run."""
    head, _, rest = document.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    return f"{head}{_BEGIN}\n```text\n$ make demo\n{printed}```\n{_END}{tail}"


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.demo", description=(__doc__ or "").partition("\n")[0]
    )
    add_option(parser, DIRECTORY)
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--keep", action="store_true", help="leave the cluster up at the end")
    end.add_argument("--picture", action="store_true", help="write the output into its document")
    given = parser.parse_args(arguments)
    if os.geteuid() != 0:
        sys.stderr.write("demo: namespaces and containerd need root: sudo make demo\n")
        return 1
    signal.signal(signal.SIGTERM, _interrupt)
    out = io.StringIO() if given.picture else sys.stdout
    try:
        code = _live(out, given.at, given.keep)
    except (DirectoryError, StageError) as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    except KeyboardInterrupt as interrupt:
        sys.stderr.write("\ndemo: interrupted; all that it started is removed\n")
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
    if isinstance(out, io.StringIO):
        printed = "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
        sys.stdout.write(printed)
        if code == 0:
            DOCUMENT.write_text(_picture(DOCUMENT.read_text(), printed))
    return code


if __name__ == "__main__":
    sys.exit(main())
