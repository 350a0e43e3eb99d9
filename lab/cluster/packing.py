"""Builds a custom image for the lab's cluster, from this machine's files and Debian packages.

    python -m lab.cluster.packing tool:1 --package strace --file ./tool=/usr/bin/tool

It is layered on the cluster's `busybox`: shell, bash, tools, cuda-probe. Shared libraries of its
programs are added. It is loaded into the cluster (`--at`) at once; `--into FILE` writes an OCI
archive instead. Pods use it with imagePullPolicy: IfNotPresent, or Never.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lab.cluster.directory import ClusterDirectory, DirectoryError, add_option
from lab.node.catalogue import Catalogue
from lab.node.lab import CLUSTER_FILES
from tools import building, programs
from tools.images import oci
from tools.images.oci import Image, ImageError, Layer

_HUB: Final = "docker.io"


def reference(name: str) -> str:
    """The full name of an image that a manifest calls by a short one: `tool` is
    `docker.io/library/tool:latest`."""
    tagged = name if ":" in name.rpartition("/")[2] else f"{name}:latest"
    first, slash, _ = tagged.partition("/")
    if not slash:
        return f"{_HUB}/library/{tagged}"
    is_registry = "." in first or ":" in first or first == "localhost"
    return tagged if is_registry else f"{_HUB}/{tagged}"


def own_image(
    name: str, packages: Sequence[str], files: Sequence[str], command: Sequence[str]
) -> Image:
    """files: `HERE=INSIDE`. Raises ImageError."""
    layer = Layer()
    for package in packages:
        layer.add_package(package)
    for each in files:
        here, equals, inside = each.rpartition("=")
        if not equals or not inside.startswith("/"):
            raise ImageError(f"--file {each}: write HERE=/INSIDE")
        source = Path(here)
        if not source.is_file():
            raise ImageError(f"--file {each}: {here} is not a file")
        layer.add_file(source, inside)
    layer.add_needed()
    below = Catalogue(CLUSTER_FILES).busybox()
    return Image(reference(name), [*below.layers, layer], command or below.command, below.environ)


def load(directory: ClusterDirectory, archive: Path) -> None:
    """Load it into the cluster's containerd. Raises DirectoryError."""
    status = directory.read_status()
    if not status.is_healthy:
        raise DirectoryError(
            f"no cluster runs in {directory.path}; make cluster{directory.advice} starts one"
        )
    socket = status.state["containerd"]
    command = [str(programs.ensure()["ctr"]), f"--address={socket}", "--namespace=k8s.io"]
    done = subprocess.run(
        [*command, "images", "import", "--local", str(archive)], text=True, capture_output=True
    )
    if done.returncode != 0:
        raise DirectoryError(f"ctr images import: {done.stderr.strip()}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.cluster.packing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", help="of the image, as a pod names it")
    parser.add_argument(
        "--package",
        action="append",
        default=[],
        metavar="DEBIAN",
        help="a Debian package to add; repeatable",
    )
    parser.add_argument(
        "--file",
        action="append",
        default=[],
        metavar="HERE=INSIDE",
        help="a file of this machine, and its path in the image; repeatable",
    )
    parser.add_argument(
        "--command",
        type=shlex.split,
        default=[],
        metavar="WORDS",
        help="the command of a container that specifies none",
    )
    add_option(parser)
    parser.add_argument(
        "--into", type=Path, metavar="FILE", help="write an OCI archive, and load nothing"
    )
    given = parser.parse_args(arguments)
    try:
        image = own_image(given.name, given.package, given.file, given.command)
        archive = oci.archive([image], building.cache_dir() / "images")
        if given.into:
            shutil.copyfile(archive, given.into)
        else:
            load(ClusterDirectory(given.at), archive)
    except (ImageError, DirectoryError, OSError) as error:
        sys.stderr.write(f"packing: {error}\n")
        return 1
    sys.stdout.write(f"{image.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
