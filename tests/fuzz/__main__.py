"""`python -m tests.fuzz [TARGET...]`: run targets in parallel, and print a table of the outcomes.

libFuzzer keeps its inputs in build/fuzz/TARGET for the next run. An input that breaks an invariant
is written to build/fuzz/findings. Once the parser is fixed, add it to the corpus: `zip -jX
tests/fuzz/corpus/TARGET.zip FILE`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fuzz.targets import TARGETS, archive
from tests.support import ROOT

WORK: Final = ROOT / "build" / "fuzz"
_MEMORY_DIR: Final = Path("/dev/shm")
"""A directory in memory for files that targets write, because libFuzzer exits without cleanup."""
_HANG_S: Final = 20
"""Timeout of one input. An input takes microseconds, but other programs may delay it."""
_MEMORY_MB: Final = 1024
"""Memory limit of one run, including all inputs that libFuzzer keeps."""
_TAIL_LINES: Final = 30


@dataclass(frozen=True)
class Outcome:
    """The result of a target's run. finding: why it ended early, or "" if nothing was found."""

    target: str
    executions: int
    finding: str


def run(name: str, limits: Sequence[str]) -> Outcome:
    """Run one target in a process of its own. `limits` are options of libFuzzer."""
    findings, learnt, known = WORK / "findings", WORK / name, WORK / "corpus" / name
    for directory in (findings, learnt, known):
        directory.mkdir(parents=True, exist_ok=True)
    if name in TARGETS:
        with zipfile.ZipFile(archive(name)) as inputs:
            inputs.extractall(known)
    program = [sys.executable, "-m", "tests.fuzz.one", name, str(WORK / f"{name}.dict")]
    bounds = [*limits, f"-timeout={_HANG_S}", f"-rss_limit_mb={_MEMORY_MB}"]
    with tempfile.TemporaryDirectory(dir=_MEMORY_DIR if _MEMORY_DIR.is_dir() else None) as scratch:
        done = subprocess.run(
            [*program, *bounds, f"-artifact_prefix={findings}/{name}-", str(learnt), str(known)],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": scratch},
            text=True,
            capture_output=True,
            errors="replace",
        )
    counted = re.search(r"^Done (\d+) runs", done.stderr, re.MULTILINE)
    finding = ""
    if done.returncode != 0:
        finding = "\n".join(done.stderr.splitlines()[-_TAIL_LINES:]) or f"ended: {done.returncode}"
    return Outcome(name, int(counted[1]) if counted else 0, finding)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Fuzz the parsers; exit status 1 where a promise is broken.",
        epilog="\n".join(f"{name:10} {target.about}" for name, target in TARGETS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", nargs="*", help="(default: all)")
    parser.add_argument("--seconds", type=int, default=300, help="for each target (default: 300)")
    chosen = parser.parse_args()
    if unknown := set(chosen.target) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    limits = [f"-max_total_time={chosen.seconds}"]
    failed = False
    with ThreadPoolExecutor(os.cpu_count()) as crew:
        for outcome in crew.map(lambda name: run(name, limits), chosen.target or TARGETS):
            failed |= bool(outcome.finding)
            sys.stdout.write(
                f"{outcome.target:10} {outcome.executions:>10,} executions"
                f"  {outcome.finding or 'nothing found'}\n"
            )
            sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
