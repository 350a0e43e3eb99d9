"""`make images`: builds the product's images as OCI archives, without a daemon or a registry."""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.building import ProgramsError
from tools.images import product
from tools.images.oci import ARCHITECTURES, ImageError
from tools.images.table import table

_EPILOG: Final = """\
Prints the archive's path, the image's name, digest and unpacked size, one image a line. To use one:

  ctr --namespace k8s.io images import ARCHIVE     containerd, for a node's pods
  docker load --input ARCHIVE                      Docker 25 or newer
  podman load --input ARCHIVE
  skopeo copy oci-archive:ARCHIVE docker://REGISTRY/gpuslice-agent:0.1.0

The same inputs give the same digest. docs/install.md has the contents, and what to do on a machine
that is not Debian.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    recipes = table().recipes
    parser = argparse.ArgumentParser(
        prog="python -m tools.images",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("images", nargs="*", choices=[[], *recipes], metavar="agent|scheduler")
    parser.add_argument("--into", type=Path, metavar="DIR", help="copy the archives there")
    here, nodes = platform.machine(), "the nodes' architecture (default: this machine's)"
    parser.add_argument("--machine", choices=list(ARCHITECTURES), default=here, help=nodes)
    fetch = "fetch the newest Debian packages, also if some are in the cache"
    parser.add_argument("--fetch", action="store_true", help=fetch)
    given = parser.parse_args(arguments)
    try:
        for name in given.images or recipes:
            built = product.ensure(recipes[name], given.machine, given.fetch)
            path = built.path
            if given.into:
                given.into.mkdir(parents=True, exist_ok=True)
                named = f"{recipes[name].name}-{ARCHITECTURES[given.machine]}.tar"
                path = Path(shutil.copyfile(path, given.into / named))
            size = f"{built.size_bytes / 1e6:.1f} MB"
            sys.stdout.write(f"{path} {built.name} {built.digest} {size}\n")
            given.fetch = False
    except (ImageError, ProgramsError, OSError) as error:
        sys.stderr.write(f"images: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
