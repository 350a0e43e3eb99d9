"""Koordinator's DaemonSet `hami-core-distribute`, which puts HAMi's library on each GPU node.

As in Koordinator's document, which writes to /usl/local/vgpu, and once more with the directory that
the document's text names, /usr/local/vgpu, in which our own files are. It differs in
imagePullPolicy alone: the lab has no registry.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from lab.cluster import packing
from lab.cluster.directory import ClusterDirectory
from tests.e2e.whole import Whole
from tests.support import ROOT
from tools.images import oci

_PATH: Final = ROOT / "docs/examples/koordinator/hami-core-distribute.yaml"
_IMAGE: Final = "docker.m.daocloud.io/projecthami/hami:v2.4.0"
_NAME: Final = "hami-core-distribute"
_LIBRARY: Final = "HAMi's libvgpu.so"
_NAMESPACES: Final = {"default": "/usl/", "hami": "/usr/"}
"""The two DaemonSets', and where their directories are."""
DIRECTORIES: Final = (Path("/usl"), Path("/tmp/vgpulock"))
"""Those that the DaemonSet makes on the host, and the lab shares with the machine."""


@contextmanager
def distributing(whole: Whole, scratch: Path) -> Iterator[None]:
    """Both DaemonSets have written their file. scratch: an empty directory."""
    payload = scratch / names.FILE_LIBRARY
    payload.write_text(_LIBRARY)
    inside = f"/k8s-vgpu/lib/nvidia/{names.FILE_LIBRARY}"
    oci.pack([packing.own_image(_IMAGE, [], [f"{payload}={inside}"], [])], scratch / "tar", scratch)
    packing.load(ClusterDirectory(whole.directory), scratch / "tar")
    made = [each for each in DIRECTORIES if not each.exists()]
    _inside(whole, "mkdir", "-p", *DIRECTORIES)
    _inside(whole, "mount", "-t", "tmpfs", _NAME, DIRECTORIES[0])
    text = _PATH.read_text().replace("imagePullPolicy: Always", "imagePullPolicy: IfNotPresent")
    whole.kubectl("label", "node", whole.state["node"], "node-type=gpu")
    whole.kubectl("create", "namespace", "hami")
    try:
        for namespace, top in _NAMESPACES.items():
            given = text.replace("namespace: default", f"namespace: {namespace}")
            whole.kubectl("apply", "-f", "-", given=given.replace("/usl/", top))
        for namespace in _NAMESPACES:
            what = (f"daemonset/{_NAME}", f"--namespace={namespace}", "--timeout=60s")
            whole.kubectl("rollout", "status", *what)
        assert (whole.root / "usl/local/vgpu" / names.FILE_LIBRARY).read_text() == _LIBRARY
        yield
    finally:
        for namespace in _NAMESPACES:
            chosen = (f"--namespace={namespace}", "--ignore-not-found")
            whole.kubectl("delete", "daemonset", _NAME, "--cascade=orphan", *chosen)
            pods = (f"--selector=koord-app={_NAME}", "--grace-period=1")
            whole.kubectl("delete", "pods", *pods, *chosen)
        _inside(whole, "umount", "--lazy", DIRECTORIES[0])
        for each in made:
            each.rmdir()


def _inside(whole: Whole, *command: str | Path) -> None:
    enter = ["nsenter", f"--target={whole.pid('containerd')}", "--mount", "--pid", "--"]
    subprocess.run([*enter, *command], check=True, capture_output=True)


def restorations(whole: Whole) -> int:
    """How often the distributor has replaced, or first written, our file in that directory."""
    log = whole.kubectl("logs", f"--namespace={names.NAMESPACE}", f"daemonset/{names.DISTRIBUTOR}")
    return log.count("copy of the library written")
