"""`python -m tests.gpu`, `make gpu`: the matrix's rows and frameworks on this machine's GPU.

First prints what is present and what is missing. Then runs the tests and writes a table of them.
The exit status is that of the tests, or 2 if there is no GPU. --list only prints what is present.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.gpu import facts
from tests.gpu.conftest import VARIABLE, machine
from tests.gpu.frameworks import FRAMEWORKS
from tests.support import ROOT

_FILES: Final = tuple(f"tests/gpu/test_{name}.py" for name in ("rows", "compute", "frameworks"))
_PYTEST: Final = (sys.executable, "-m", "pytest", *_FILES)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu",
        description="Run the tests that need a GPU. Other options go to pytest.",
    )
    parser.add_argument("--gpu", default=os.environ.get(VARIABLE, "0"), help="NVML's number of it")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    parser.add_argument("--list", action="store_true", help="print what would run, and run nothing")
    options, more = parser.parse_known_args(arguments)
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
        return subprocess.run([*_PYTEST, "--collect-only", "-q"], cwd=ROOT, check=False).returncode
    if gpu is None:
        return 2
    return _run(gpu, options.gpu, options.results, more)


def _frameworks() -> Iterator[str]:
    """Yield a line for each framework: its version, or why its tests are skipped."""
    for framework in FRAMEWORKS:
        version = framework.version()
        found = f"{version} ({framework.python})" if version else f"skipped: {framework.missing}"
        yield f"{framework.name:<20}{found}"


def _run(gpu: facts.Facts, number: str, results: Path, more: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [*_PYTEST, "-o", "junit_family=xunit1", f"--junitxml={report}", *more]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, VARIABLE: number}, check=False)
        if not report.exists():
            return done.returncode
        table = "\n".join(_rows(report))
    today = datetime.datetime.now(datetime.UTC).date()
    path = results / f"gpu-{today}.md"
    path.write_text(_CONDITIONS.format(today=today, gpu=gpu, system=os.uname()) + table + "\n")
    sys.stdout.write(f"{path}\n")
    return done.returncode


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
