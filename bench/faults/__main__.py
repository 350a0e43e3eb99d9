"""`make faults`: prints the fault matrix of every containerd. Exit status 1 if it does not hold."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.faults import report, rig
from bench.faults.limits import LIMITS, LimitsRig
from bench.faults.report import Column
from bench.faults.rig import INJECTIONS, ROWS
from lab.node.containerd_config import Options
from lab.node.lab import CLUSTER_FILES, FAILURES, STATIC_PROBE, Lab
from tools import programs
from tools.programs import DEFAULT, RELEASES


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    releases = [RELEASES[name] for name in chosen.runtime or (() if chosen.own else RELEASES)]
    releases += [programs.of_machine(directory) for directory in chosen.own]
    known = INJECTIONS if chosen.control else {**ROWS, **LIMITS}
    injections = {name: known[name] for name in chosen.fault or known}
    limits = {name: row for name, row in injections.items() if name in LIMITS}
    for release in releases:
        programs.ensure(release=release)
    columns = []
    for release in releases:
        validators = (True,) if chosen.control or not release.has_validator else (True, False)
        for validator in validators:
            options = Options(validator=validator)
            title = release.title + ("" if validator else ", validator off")
            with (
                Lab(files=CLUSTER_FILES, release=release, options=options) as lab,
                rig.Rig(lab, naive=chosen.control) as made,
            ):
                others = {name: row for name, row in injections.items() if name not in limits}
                cells = dict(rig.column(made, title, others))
            if limits and validator:
                static = {f"/usr/bin/{STATIC_PROBE.name}": (STATIC_PROBE, 0o755)}
                files = {**CLUSTER_FILES, **static}
                with (
                    Lab(files=files, release=release, options=options, new_driver=True) as lab,
                    LimitsRig(lab, STATIC_PROBE.name) as made,
                ):
                    cells |= rig.column(made, title, limits)
            columns.append(Column(release, validator and release.has_validator, cells))
    sys.stdout.write(report.document(columns, control=chosen.control))
    return report.verdict(columns, control=chosen.control)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    control = "control run without the fail-closed measures: expects unprotected containers"
    parser.add_argument("--control", action="store_true", help=control)
    column = f"one column, repeatable (default: all; `make test-all` has {DEFAULT.name})"
    parser.add_argument("--runtime", action="append", choices=list(RELEASES), help=column)
    own = "a column for this machine's own containerd, whose programs are in DIR, such as"
    own += " /usr/bin; it is run privately, the one that serves the machine is not touched"
    parser.add_argument("--own", type=Path, action="append", default=[], metavar="DIR", help=own)
    parser.add_argument(
        "--fault", action="append", choices=[*ROWS, *LIMITS], help="one row, repeatable"
    )
    return parser


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("faults: private containerds need root: sudo make faults")
    try:
        sys.exit(main())
    except FAILURES as error:
        sys.exit(f"faults: {error}")
    except KeyboardInterrupt:
        sys.stderr.write("\nfaults: interrupted; all that it started is removed\n")
        sys.exit(128 + signal.SIGINT)
