"""`python -m simgpu.nvidia_ctk cdi generate`: the part of nvidia-ctk that generates a CDI spec.

Takes the options of the real one that the node agent uses: JSON to standard output, devices named
by UUID, and one more device `all`. Like the real one it needs a running driver: the daemon of
$SIMGPU_DIR, whose spec it prints, with host paths below --driver-root. The GPUs have no device
nodes and no hooks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simgpu.state_dir import StateDir


def main(argv: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(argv)
    directory = os.environ.get("SIMGPU_DIR")
    state_dir = StateDir.at(Path(directory)) if directory else None
    if state_dir is None or state_dir.daemon_pid() is None:
        sys.stderr.write("failed to generate CDI spec: failed to initialize NVML: no daemon\n")
        return 1
    document = _below(given.driver_root, json.loads(state_dir.cdi_spec.read_text()))
    mounts = [each for of in document["devices"] for each in of["containerEdits"]["mounts"]]
    document["devices"].append({"name": "all", "containerEdits": {"mounts": mounts}})
    json.dump(document, sys.stdout)
    sys.stderr.write(f"Generated CDI spec with version {document['cdiVersion']}\n")
    return 0


def _below(root: str, document: dict[str, Any]) -> dict[str, Any]:
    for parent in (document, *document["devices"]):
        for mount in parent["containerEdits"]["mounts"]:
            mount["hostPath"] = root.rstrip("/") + mount["hostPath"]
    return document


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simgpu.nvidia_ctk", description=__doc__)
    cdi = parser.add_subparsers(required=True, metavar="COMMAND").add_parser("cdi")
    generate = cdi.add_subparsers(required=True, metavar="COMMAND").add_parser("generate")
    generate.add_argument("--format", choices=("json",), required=True)
    generate.add_argument("--device-name-strategy", choices=("uuid",), required=True)
    generate.add_argument("--driver-root", default="/")
    generate.add_argument("--dev-root")
    generate.add_argument("--nvidia-cdi-hook-path")
    return parser


if __name__ == "__main__":
    sys.exit(main())
