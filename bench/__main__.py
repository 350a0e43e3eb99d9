"""`python -m bench NAME [--quick] [--check]`: prints a table, then one line of JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import Result

BENCHES = {
    "claims": "kube-scheduler with the extender, and without it with claims",
    "core": "shares of the GPU's time, in virtual time and simulated, and what a launch costs",
    "node": "1,000 containers on a real containerd; the agent's memory and time with 50 (root)",
    "nri": "what the node agent adds to a container's creation, beside plugins in Go (root)",
    "queues": "1,000 pods in 20 queues: Kueue with gpuslice, and with stock kube-scheduler",
    "scheduler": "kube-scheduler with and without the extender; the extender's verbs and memory",
    "shim": "driver calls and program starts under the library, beside the same without it",
    "top": "the first frame of `gpuslice top` at 1,000 nodes with 8 GPUs and 2,000 pods",
}


def _where() -> dict[str, object]:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _table(result: Result) -> str:
    lines = [list(result.header), *map(list, result.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(result.header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Benchmarks of the library, the node agent and the scheduler.",
        epilog="\n".join(f"{name}: {about}" for name, about in BENCHES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=sorted(BENCHES))
    parser.add_argument("--quick", action="store_true", help="some minutes; checks no goal")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a goal is missed")
    parser.add_argument(
        "--slices", action="store_true", help="core only: the pairs with other slices of the GPU"
    )
    options = parser.parse_args(arguments)
    if options.quick and options.check:
        parser.error("--check: not allowed with --quick, which judges no goal")
    if options.slices and (options.name != "core" or options.quick):
        parser.error("--slices: only allowed with core, and not with --quick")
    module = importlib.import_module(f"bench.{options.name}")
    result: Result = module.run_other_slices() if options.slices else module.run(options.quick)
    summary = {
        "bench": options.name,
        "where": _where(),
        "quick": options.quick,
        "figures": {name: round(value, 4) for name, value in result.figures.items()},
        "goals": {} if options.quick else result.goals,
        "met": None if options.quick else result.met,
    }
    sys.stdout.write(f"{_table(result)}\n{json.dumps(summary)}\n")
    return 1 if options.check and not result.met else 0


if __name__ == "__main__":
    sys.exit(main())
