"""`python -m tests.gpu`, `make gpu`: the matrix's rows on this machine's card, and a table of them.

The exit status is that of the tests; 2 where there is no card. At most 3 GiB of the card are used.
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
from tests.talking import ROOT

_FILES: Final = ("tests/gpu/test_rows.py", "tests/gpu/test_torch.py")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--card", default=os.environ.get(VARIABLE, "0"), help="NVML's number of it")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    options, more = parser.parse_known_args(arguments)
    try:
        card = facts.of(options.card, machine())
    except facts.CardError as error:
        sys.stderr.write(f"gpuslice: {error}\n")
        return 2
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", *_FILES, "-o", "junit_family=xunit1"]
        command += [f"--junitxml={report}", *more]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, VARIABLE: options.card}, check=False
        )
        if not report.exists():
            return done.returncode
        table = "\n".join(_rows(report))
    today = datetime.datetime.now(datetime.UTC).date()
    path = options.results / f"gpu-{today}.md"
    path.write_text(_CONDITIONS.format(today=today, card=card, system=os.uname()) + table + "\n")
    sys.stdout.write(f"{path}\n")
    return done.returncode


_CONDITIONS: Final = """# The library on a card

`make gpu`, {today}: {card.name}, {card.total_bytes} bytes, {card.free_bytes} free before;
driver {card.driver_version}, CUDA {card.cuda_version}; {system.sysname} {system.release}
on {system.machine}. A context takes {card.context_bytes} bytes here;
the limit is 1 GiB and a context.

| test | result | figures, in bytes |
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
