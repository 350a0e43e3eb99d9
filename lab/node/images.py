"""OCI archives made from this machine's own files: no registry, no download.

A layer is a table of paths. Layers are shared between the images of one archive, and the archive is
cached under a hash of its whole content. catalogue.py lists the content of each image.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.scratch import scratch

_FORMAT: Final = 1
_KEPT: Final = 4
"""Archives kept in the cache: the demo's, the tests', and the same of another checkout."""
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_DOCUMENTS: Final = re.compile(r"/usr/share/(doc|man|locale|info|lintian|bash-completion|bug)(/|$)")
_MEDIA: Final = "application/vnd.oci.image.{}"


class ImageError(RuntimeError):
    """A file or package of an image is not on this machine; the text names it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One path in a layer: a file's bytes, a file of this machine, a link or a directory."""

    mode: int
    source: Path | None = None
    content: bytes | None = None
    link: str | None = None

    def facts(self) -> str:
        """The input of the archive's key; a machine's file counts by its content, not its time."""
        if self.source is not None:
            with self.source.open("rb") as file:
                return f"{self.mode:o} {hashlib.file_digest(file, 'blake2b').hexdigest()}"
        return f"{self.mode:o} {self.link} {self.content!r}"


@dataclass(slots=True)
class Layer:
    """Paths without a leading slash; parents are added when the layer is packed."""

    entries: dict[str, Entry] = field(default_factory=dict)

    def add_bytes(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self.entries[path.lstrip("/")] = Entry(mode, content=content)

    def add_directory(self, path: str, mode: int = 0o755) -> None:
        self.entries[path.lstrip("/")] = Entry(mode)

    def add_link(self, path: str, target: str) -> None:
        self.entries[path.lstrip("/")] = Entry(0o777, link=target)

    def add_file(self, source: Path, path: str | None = None, mode: int | None = None) -> None:
        """A file of this machine, at its own path or another; links are followed."""
        where = path or str(_without_links(source))
        permissions = source.stat().st_mode & 0o777 if mode is None else mode
        self.entries[where.lstrip("/")] = Entry(permissions, source=source.resolve())

    def add_tree(self, source: Path, path: str, skip: re.Pattern[str]) -> None:
        """A directory of this machine; `skip` is searched for in each `/relative/path`."""
        for directory, inner, files in os.walk(source):
            relative = os.path.relpath(directory, source)
            prefix = "" if relative == "." else f"/{relative}"
            inner[:] = [name for name in inner if not skip.search(f"{prefix}/{name}/")]
            for name in files:
                if not skip.search(f"{prefix}/{name}"):
                    self.add_file(Path(directory, name), f"{path}{prefix}/{name}")

    def add_package(self, name: str) -> None:
        """The files of an installed Debian package, without its documents. Of its dependencies only
        libraries are added (`add_needed`). Raises ImageError."""
        listed = subprocess.run(["dpkg-query", "--listfiles", name], text=True, capture_output=True)
        if listed.returncode != 0:
            raise ImageError(f"{listed.stderr.strip().splitlines()[0]}; apt-get install brings it")
        for path in map(Path, listed.stdout.split("\n")):
            if not path.is_absolute() or _DOCUMENTS.match(str(path)) or not os.path.lexists(path):
                continue
            if path.is_symlink() and not path.is_dir():
                self.add_link(str(_without_links(path)), str(path.readlink()))
            elif path.is_file():
                self.add_file(path)

    def add_needed(self) -> None:
        """The shared libraries and the loader that the layer's programs need."""
        sources = sorted({str(e.source) for e in self.entries.values() if _is_elf(e.source)})
        if not sources:
            return
        listed = subprocess.run(["ldd", *sources], text=True, capture_output=True, check=False)
        for found in re.findall(r"^\s+(?:\S+ => )?(/\S+) \(0x", listed.stdout, re.MULTILINE):
            if found not in sources:
                self.add_file(Path(found))


@dataclass(frozen=True, slots=True)
class Image:
    """A name, its layers from the bottom up, and the default command.

    environ: "KEY=VALUE" lines; duplicates are kept, as an image may have them.
    """

    name: str
    layers: Sequence[Layer]
    command: Sequence[str] = ()
    environ: Sequence[str] = ()


def archive(images: Sequence[Image], directory: Path) -> Path:
    """The OCI archive of the images, from `directory` or packed into it."""
    path = directory / f"images-{_key(images)}.tar"
    if path.exists():
        os.utime(path)
        return path
    with scratch(directory, ".packing-") as packing:
        packed = packing / "archive.tar"
        _pack(images, packed, packing)
        packed.rename(path)
    _forget(directory, path)
    return path


def _forget(directory: Path, newest: Path) -> None:
    """Keep the archives that were used last."""
    archives = sorted(directory.glob("images-*.tar"), key=lambda path: path.stat().st_mtime)
    for path in archives[:-_KEPT]:
        if path != newest:
            path.unlink(missing_ok=True)


def _without_links(path: Path) -> Path:
    """The path with its directories' links resolved: /lib/x is /usr/lib/x on a merged system."""
    return path.parent.resolve() / path.name


def _is_elf(path: Path | None) -> bool:
    if path is None or not os.access(path, os.R_OK):
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _key(images: Sequence[Image]) -> str:
    digest = hashlib.sha256(f"{_FORMAT} {platform.machine()}".encode())
    for image in images:
        digest.update(f"{image.name} {list(image.command)} {list(image.environ)}\n".encode())
        for layer in image.layers:
            for path, entry in sorted(layer.entries.items()):
                digest.update(f"{path} {entry.facts()}\n".encode())
            digest.update(b"\n")
    return digest.hexdigest()[:16]


def _pack(images: Sequence[Image], target: Path, packing: Path) -> None:
    blobs: dict[str, Path] = {}
    layers: dict[int, dict[str, Any]] = {}
    manifests = []

    def keep(data: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = packing / digest
        blobs[digest].write_bytes(data)
        return _descriptor(kind, digest, len(data))

    for image in images:
        for layer in image.layers:
            if id(layer) not in layers:
                path, digest = _pack_layer(layer, packing)
                blobs[digest] = path
                layers[id(layer)] = _descriptor("layer.v1.tar", digest, path.stat().st_size)
        mine = [layers[id(layer)] for layer in image.layers]
        config = {
            "architecture": _MACHINES[platform.machine()],
            "os": "linux",
            "config": {"Cmd": list(image.command), "Env": list(image.environ)},
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in mine]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MEDIA.format("manifest.v1+json"),
            "config": keep(json.dumps(config).encode(), "config.v1+json"),
            "layers": mine,
        }
        described = keep(json.dumps(manifest).encode(), "manifest.v1+json")
        manifests.append({**described, "annotations": {"io.containerd.image.name": image.name}})
    index = {"schemaVersion": 2, "manifests": manifests}
    with tarfile.open(target, "w") as tar:
        _put(tar, "oci-layout", Entry(0o644, content=b'{"imageLayoutVersion":"1.0.0"}'))
        _put(tar, "index.json", Entry(0o644, content=json.dumps(index).encode()))
        for digest, path in sorted(blobs.items()):
            tar.add(path, f"blobs/sha256/{digest}")


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": _MEDIA.format(kind), "digest": f"sha256:{digest}", "size": size}


def _pack_layer(layer: Layer, packing: Path) -> tuple[Path, str]:
    handle, name = tempfile.mkstemp(prefix="layer-", dir=packing)
    os.close(handle)
    path = Path(name)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for where, entry in _with_parents(layer.entries):
            _put(tar, where, entry)
    with path.open("rb") as file:
        return path, hashlib.file_digest(file, "sha256").hexdigest()


def _with_parents(entries: Mapping[str, Entry]) -> Iterable[tuple[str, Entry]]:
    whole = dict(entries)
    for path in entries:
        for parent in Path(path).parents:
            if str(parent) != ".":
                whole.setdefault(str(parent), Entry(0o755))
    return sorted(whole.items())


def _put(tar: tarfile.TarFile, path: str, entry: Entry) -> None:
    """Owned by root; a machine's file keeps its time, which Python's compiled files rely on."""
    info = tarfile.TarInfo(path)
    info.mode = entry.mode
    if entry.link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
        tar.addfile(info)
    elif entry.content is not None:
        info.size = len(entry.content)
        tar.addfile(info, io.BytesIO(entry.content))
    elif entry.source is not None:
        status = entry.source.stat()
        info.size, info.mtime = status.st_size, int(status.st_mtime)
        with entry.source.open("rb") as file:
            tar.addfile(info, file)
    else:
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
