"""The image of the lab's containers as one tar, which Docker imports without a registry.

Pure packing (tools/images/oci.py) of the content that lab/node/catalogue.py lists.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lab.node.catalogue import Catalogue
from lab.node.lab import CLUSTER_FILES
from tools.building import cache_dir
from tools.images import oci
from tools.images.oci import Layer

NAME: Final = "local/debian"
IMAGE: Final = f"{NAME}:12"
"""bash, glibc, coreutils, cuda-probe and cuda-load. It has no NVIDIA library, as any image."""
PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def archive() -> Path:
    """Return the image's tar, from the cache or packed into it. Raises ImageError."""
    whole = Layer()
    for layer in Catalogue(CLUSTER_FILES).busybox().layers:
        whole.entries |= layer.entries
    return oci.root(whole, cache_dir() / "images")
