"""`python -m traces`: record a program's calls of the driver, and replay them."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpuslice.contract import quantity
from shim import region
from traces import cost, host, record
from traces.replay import Recording, Replay, ReplayError, load
from traces.trace import TraceError
from traces.watch import Watch

_BESIDE_BYTES: Final = 8 * 2**30
"""How much larger the simulated GPU's memory is than the limit. Otherwise the GPU might refuse an
allocation before the library does."""
_REPLAY: Final = """Replay a recording through the library, under a limit, on a private simulated
GPU. FILE: the traces of all processes of one recording. The last line of the output is JSON. The
exit status is 1 where a result differs from the recorded one; see docs/recipes/development.md."""

_RECORD: Final = """Run CMD and record what it asks of the driver, one trace for each process, into
DIR. A trace has data about calls alone: no code, no contents of memory, no strings. The exit status
is CMD's."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m traces", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="replay | record")
    replay = commands.add_parser("replay", help="replay a recording", description=_REPLAY)
    replay.add_argument("files", nargs="+", type=Path, metavar="FILE")
    limit = "the limit, as 6GiB (default: the recorded GPU's memory)"
    replay.add_argument("--memory", metavar="SIZE", help=limit)
    replay.set_defaults(run=_replay)
    recording = commands.add_parser("record", help="record a program", description=_RECORD)
    recording.add_argument("--output", type=Path, default=Path(), metavar="DIR")
    did = "what the program did, for people"
    recording.add_argument("--did", default="", metavar="TEXT", help=did)
    recording.add_argument("command", nargs="+", metavar="CMD", help="after --, with its arguments")
    recording.set_defaults(run=_record)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except (TraceError, ReplayError, record.DriverError, OSError) as error:
        sys.stderr.write(f"gpuslice: {error}\n")
        return 2


def _replay(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(dir=region.parent(os.environ)) as name:
        directory = Path(name)
        recording = load(options.files, directory)
        limit_bytes = _limit(options.memory, recording)
        with (
            host.simulated(directory, limit_bytes + _BESIDE_BYTES) as environment,
            Watch(host.UUID, environment) as watch,
        ):
            outcome = Replay(recording, directory, directory, limit_bytes, watch).run(environment)
        added_ns = cost.added_ns_per_call(recording.processes, directory)
    for text in outcome.differences[:20]:
        sys.stdout.write(f"{text}\n")
    summary = {
        "calls": recording.calls,
        "differences": len(outcome.differences),
        "charge_error_bytes": outcome.charge_error_bytes,
        "added_ns_per_call": round(added_ns, 1),
        "limit_bytes": limit_bytes,
        "refused_at_line": outcome.refusal.call.line if outcome.refusal else None,
        "skipped": recording.skipped,
    }
    sys.stdout.write(f"{json.dumps(summary)}\n")
    return 1 if outcome.differences else 0


def _record(options: argparse.Namespace) -> int:
    status, traces = record.record(options.command, options.output, options.did)
    for trace in traces:
        sys.stderr.write(f"gpuslice: {trace}\n")
    return status


def _limit(text: str | None, recording: Recording) -> int:
    if text is None:
        if not recording.memory_bytes:
            raise ReplayError("--memory: required: the trace does not say how much its GPU had")
        return recording.memory_bytes
    parsed = quantity.parse(text.removesuffix("B"))
    if not isinstance(parsed, quantity.Value) or not parsed.amount:
        raise ReplayError(f"--memory: invalid value {text!r}: must be a size, as 6GiB")
    return parsed.amount


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
