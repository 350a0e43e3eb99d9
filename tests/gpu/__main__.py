"""`python -m tests.gpu`, `make gpu`: the matrix's rows and measurements on this machine's GPU.

First prints what is present and what is missing. Then runs the tests in parts, prints each part's
time, and writes a table of all results. Without arguments, some parts run, each in a budget of
time. Tests that do not fit the budget are skipped. Named parts have no budget. The exit status is
that of the tests, or 2 if there is no GPU. --list only prints what is present.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.gpu import facts
from tests.gpu.conftest import UNTIL, VARIABLE, machine
from tests.gpu.frameworks import FRAMEWORKS
from tests.support import ROOT

_PYTEST: Final = (sys.executable, "-m", "pytest")


class _Part(NamedTuple):
    budget_s: float
    """0: the part runs only if it is named."""
    file: str
    tests: str = ""
    """An expression for pytest's -k; empty: all tests of the file."""


_PARTS: Final = {
    "calls": _Part(25, "test_measured.py", "not pairs"),
    "pairs": _Part(90, "test_measured.py", "pairs"),
    "model": _Part(15, "test_compute.py", "not shares"),
    "rows": _Part(40, "test_rows.py"),
    "limits": _Part(5, "test_limits.py"),
    "shares": _Part(0, "test_compute.py", "shares"),
    "frameworks": _Part(0, "test_frameworks.py"),
}
"""The budgets add up to less than three minutes."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu",
        description="Run the tests that need a GPU. Without PART, run some for three minutes.",
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(_PARTS)}")
    parser.add_argument("--gpu", default=os.environ.get(VARIABLE, "0"), help="NVML's number of it")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    parser.add_argument("--list", action="store_true", help="print what would run, and run nothing")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(_PARTS):
        parser.error(f"PART: invalid value {min(unknown)}: must be one of {', '.join(_PARTS)}")
    parts = {
        name: part
        for name, part in _PARTS.items()
        if name in options.parts or (not options.parts and part.budget_s)
    }
    gpu = None
    try:
        gpu = facts.of(options.gpu, machine())
        free = f"{gpu.free_bytes} of {gpu.total_bytes} bytes free"
        there = f"{gpu.name}, {free}, driver {gpu.driver_version}"
    except facts.GpuError as error:
        there = f"none: {error}"
    sys.stdout.write("".join(f"{line}\n" for line in (f"{'GPU':<20}{there}", *_frameworks())))
    sys.stdout.flush()
    if options.list:
        command = [*_PYTEST, "tests/gpu", "--collect-only", "-q"]
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    if gpu is None:
        return 2
    environment = {**os.environ, VARIABLE: options.gpu}
    if not options.parts:
        environment[UNTIL] = str(time.monotonic())
    return _run(gpu, parts, environment, options.results)


def _frameworks() -> Iterator[str]:
    """Yield a line for each framework: its version, or why its tests are skipped."""
    for framework in FRAMEWORKS:
        version = framework.version()
        found = f"{version} ({framework.python})" if version else f"skipped: {framework.missing}"
        yield f"{framework.name:<20}{found}"


def _run(
    gpu: facts.Facts, parts: Mapping[str, _Part], environment: dict[str, str], results: Path
) -> int:
    """Run the parts, write the table, and return the worst exit status. A part also gets the time
    that the parts before it have left."""
    table, status = "", 0
    for name, part in parts.items():
        if UNTIL in environment:
            environment[UNTIL] = str(float(environment[UNTIL]) + part.budget_s)
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            report = Path(directory) / "report.xml"
            chosen = ("-k", part.tests) if part.tests else ()
            command = (
                *_PYTEST,
                f"tests/gpu/{part.file}",
                *chosen,
                "-s",
                "-v",
                f"--junitxml={report}",
            )
            done = subprocess.run(
                [*command, "-o", "junit_family=xunit1"], cwd=ROOT, env=environment, check=False
            )
            if report.exists():
                table += "".join(f"{row}\n" for row in _rows(report))
        status = max(status, done.returncode)
        budget = f" of {part.budget_s:.0f}" if UNTIL in environment else ""
        sys.stdout.write(f"{name}: {time.monotonic() - began_s:.0f}{budget} s\n")
        sys.stdout.flush()
    today = datetime.datetime.now(datetime.UTC).date()
    path = results / f"gpu-{today}.md"
    path.write_text(_CONDITIONS.format(today=today, gpu=gpu, system=os.uname()) + table)
    sys.stdout.write(f"{path}\n")
    return status


_CONDITIONS: Final = """# The library on a GPU

`make gpu`, {today}: {gpu.name}, {gpu.total_bytes} bytes, {gpu.free_bytes} free before;
driver {gpu.driver_version}, CUDA {gpu.cuda_version}; {system.sysname} {system.release}
on {system.machine}. A context takes {gpu.context_bytes} bytes here;
the rows' limit is 1 GiB and a context.

| test | result | figures |
|---|---|---|
"""


def _rows(report: Path) -> Iterator[str]:
    for case in ET.parse(report).getroot().iter("testcase"):
        outcome = "passed"
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                reason = (child.get("message") or "").splitlines()[:1]
                outcome = f"{child.tag}: {''.join(reason)}".replace("|", "/")
        figures = "; ".join(
            str(each.get("value")) for each in case.iter("property") if each.get("name") == "figure"
        )
        yield f"| {case.get('name')} | {outcome} | {figures} |"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
