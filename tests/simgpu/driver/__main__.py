"""Records what NVIDIA's own driver libraries answer where there is no GPU.

    python -m tests.simgpu.driver fetch DIR   # Debian's packages, into DIR/470
    python -m tests.simgpu.driver record DIR  # writes recorded.tsv beside this file

`fetch` uses an apt configuration of its own in DIR, with the mirror that the machine's apt uses and
the non-free component; it installs nothing. `record` needs the libraries of each driver anywhere
under DIR, x86-64, nm and the built libvgpu.so, whose hooks it calls; a second run writes the same
bytes. `make test` needs neither.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.simgpu.driver import answers
from tests.simgpu.driver.ask import exports
from tests.support import ROOT

PACKAGES: Final = {
    "470": ("bookworm", ("libnvidia-tesla-470-cuda1", "libnvidia-tesla-470-ml1")),
}
"""Driver: Debian's suite, and the packages of it."""


def names_of_the_lists() -> set[str]:
    """The base names and symbols of cuda.def and cuda_unsupported.def."""
    lists = (ROOT / "simgpu/src/abi" / name for name in ("cuda.def", "cuda_unsupported.def"))
    text = "".join(path.read_text() for path in lists)
    rows = re.findall(r"^[A-Z_]+\((\w+), (\w+), \d", text, flags=re.MULTILINE)
    return {name for row in rows for name in row}


def ask(part: str, directory: Path, *options: str, **environ: str) -> Any:
    """Output of ask.py on the library in `directory`; part: cuda or nvml."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simgpu.driver.ask", part, *options],
        input="\n".join(sorted(names_of_the_lists())),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(directory), **environ},
        text=True,
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout)


def record(directory: Path) -> None:
    asked = {}
    hooks = exports(ROOT / "build/dev/lib/libvgpu.so")
    for library in directory.rglob("libcuda.so.1"):
        parts = {part: ask(part, library.parent, "--apart") for part in ("cuda", "nvml")}
        for part in parts.values():
            part["calls"] = {name: part["calls"][name] for name in hooks if name in part["calls"]}
        listed = names_of_the_lists()
        resolved = parts["cuda"]["resolved"]
        parts["cuda"]["resolved"] = {
            row: resolved[row] for row in resolved if listed & {*row.split()}
        }
        asked[int(parts["cuda"]["values"]["version"].split()[1])] = parts
    answers.write(asked)


def _mirror() -> str:
    """Return the place at which this machine's apt finds Debian."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"^Debian (\S+/debian/)$", listed.stdout, re.MULTILINE)
    if not found:
        raise SystemExit("apt: no index of Debian: run apt-get update first")
    return found[1]


def fetch(directory: Path) -> None:
    mirror = _mirror()
    for driver, (suite, packages) in PACKAGES.items():
        private = directory / "apt" / suite
        for part in ("lists/partial", "cache/archives/partial"):
            (private / part).mkdir(parents=True, exist_ok=True)
        keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
        source = f"deb [arch=amd64 signed-by={keys}] {mirror} {suite} non-free\n"
        (private / "sources.list").write_text(source)
        settings = {
            "Dir::Etc::sourcelist": private / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::Lists": private / "lists",
            "Dir::Cache": private / "cache",
            "APT::Sandbox::User": "root",
        }
        apt = ["apt-get", "-q", *(f"-o{key}={value}" for key, value in settings.items())]
        target = directory / driver
        target.mkdir(exist_ok=True)
        subprocess.run([*apt, "update"], check=True)
        subprocess.run([*apt, "download", *packages], cwd=target, check=True)
        for package in target.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, target], check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simgpu.driver",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("fetch", "record"))
    parser.add_argument("directory", type=Path)
    given = parser.parse_args(arguments)
    if given.action == "fetch":
        fetch(given.directory.resolve())
    else:
        record(given.directory.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
