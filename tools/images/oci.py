"""Packs OCI archives from this machine's files, without a registry or a daemon.

A layer is a table of paths. The images of one archive may share layers. `archive` caches an archive
under a hash of its whole content. Equal content has equal digests, because every file belongs to
root and has no time, unless its layer is dated. The product's and the lab's images are made here.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.scratch import scratch

_FORMAT: Final = 2
KEPT: Final = 4
"""The number of archives kept in the cache: the demo's and the tests', for two checkouts."""
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""The architecture's name of Debian, Go and OCI, by the kernel's name."""
_MEDIA: Final = "application/vnd.oci.image.{}"


class ImageError(RuntimeError):
    """An image cannot be built, for example because a file is missing. The text has the reason."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a layer has at one path: given bytes, a file of this machine, a link or a directory."""

    mode: int
    source: Path | None = None
    content: bytes | None = None
    link: str | None = None

    def facts(self) -> str:
        """Return a text for the archive's hash. A file counts by its content, not by its time."""
        if self.source is not None:
            with self.source.open("rb") as file:
                return f"{self.mode:o} {hashlib.file_digest(file, 'blake2b').hexdigest()}"
        return f"{self.mode:o} {self.link} {self.content!r}"


@dataclass(slots=True)
class Layer:
    """A layer's entries by path, without a leading slash. Packing adds their parent directories.

    dated: whether files keep their times, which Python compares with those in its compiled files.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    dated: bool = True

    def add_bytes(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self.entries[path.lstrip("/")] = Entry(mode, content=content)

    def add_directory(self, path: str, mode: int) -> None:
        self.entries[path.lstrip("/")] = Entry(mode)

    def add_link(self, path: str, target: str) -> None:
        self.entries[path.lstrip("/")] = Entry(0o777, link=target)

    def add_file(self, source: Path, path: str | None = None, mode: int | None = None) -> None:
        """Add a file of this machine, at its own path or at `path`. Links are followed."""
        where = path or str(_without_links(source))
        permissions = source.stat().st_mode & 0o777 if mode is None else mode
        self.entries[where.lstrip("/")] = Entry(permissions, source=source.resolve())

    def add_tree(self, source: Path, path: str, skip: re.Pattern[str]) -> None:
        """Add the files of a directory, except those whose relative path matches `skip`."""
        for directory, inner, files in os.walk(source):
            relative = os.path.relpath(directory, source)
            prefix = "" if relative == "." else f"/{relative}"
            inner[:] = [name for name in inner if not skip.search(f"{prefix}/{name}/")]
            for name in files:
                if not skip.search(f"{prefix}/{name}"):
                    self.add_file(Path(directory, name), f"{path}{prefix}/{name}")

    def add_root(self, root: Path, path: str = "") -> None:
        """Add everything below a directory of this machine, with links as links."""
        for directory, inner, files in os.walk(root):
            for each in (Path(directory, name) for name in (*inner, *files)):
                where = f"{path}/{each.relative_to(root)}"
                if each.is_symlink():
                    self.add_link(where, str(each.readlink()))
                elif each.is_file():
                    self.add_file(each, where)

    def add_needed(self) -> None:
        """Add the shared libraries and the loader that the layer's programs need."""
        sources = sorted({str(e.source) for e in self.entries.values() if is_elf(e.source)})
        if not sources:
            return
        listed = subprocess.run(["ldd", *sources], text=True, capture_output=True, check=False)
        for found in re.findall(r"^\s+(?:\S+ => )?(/\S+) \(0x", listed.stdout, re.MULTILINE):
            if found not in sources:
                self.add_file(Path(found))


@dataclass(frozen=True, slots=True)
class Image:
    """An image. layers: the lowest first. command: the default arguments.

    environ: "KEY=VALUE" texts, in which a key may occur several times. user: "UID:GID", or "" for
    root. architecture: OCI's name, or "" for this machine's.
    """

    name: str
    layers: Sequence[Layer]
    command: Sequence[str] = ()
    environ: Sequence[str] = ()
    entrypoint: Sequence[str] = ()
    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    architecture: str = ""


def archive(images: Sequence[Image], directory: Path) -> Path:
    """Return the path of the images' OCI archive in `directory`. Pack it if it is not there."""
    path = directory / f"images-{_key(images)}.tar"
    return cached(path, "images-*.tar", lambda packing: pack(images, packing))


def root(layer: Layer, directory: Path) -> Path:
    """Return the path of a tar in `directory` with the layer's files alone, as `docker import`
    reads it. Pack it if it is not there."""
    path = directory / f"root-{_key([Image('', [layer])])}.tar"
    return cached(path, "root-*.tar", lambda packing: _pack_layer(layer, packing)[0])


def cached(final: Path, pattern: str, make: Callable[[Path], Path]) -> Path:
    """Return the file or directory `final` in the cache. If it does not exist, `make` makes it in a
    scratch directory, from which it is renamed to `final`, unless another process was faster. Of
    all paths that match the pattern, only the KEPT that were used last stay."""
    if not final.exists():
        with scratch(final.parent, ".making-") as place:
            made = make(place)
            try:
                made.rename(final)
            except OSError:
                if not final.is_dir():
                    raise
        os.utime(final)
        found = sorted(final.parent.glob(pattern), key=lambda path: path.stat().st_mtime)
        for path in found[:-KEPT]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    os.utime(final)
    return final


def _without_links(path: Path) -> Path:
    """Resolve links in the path's directories: /lib/x becomes /usr/lib/x where /lib is a link."""
    return path.parent.resolve() / path.name


def is_elf(path: Path | None) -> bool:
    if path is None or not (path.is_file() and os.access(path, os.R_OK)):
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _key(images: Sequence[Image]) -> str:
    digest = hashlib.sha256(f"{_FORMAT} {platform.machine()}".encode())
    for image in images:
        digest.update(f"{image.name} {_configuration(image)}\n".encode())
        for layer in image.layers:
            digest.update(f"{layer.dated}\n".encode())
            for path, entry in sorted(layer.entries.items()):
                digest.update(f"{path} {entry.facts()}\n".encode())
            digest.update(b"\n")
    return digest.hexdigest()[:16]


def _configuration(image: Image) -> dict[str, Any]:
    """Return the image's defaults for a container, without empty fields."""
    given = {
        "User": image.user,
        "Env": list(image.environ),
        "Entrypoint": list(image.entrypoint),
        "Cmd": list(image.command),
        "Labels": dict(sorted(image.labels.items())),
    }
    return {name: value for name, value in given.items() if value}


def pack(images: Sequence[Image], packing: Path) -> Path:
    """Write the archive into the directory `packing`, which also gets its blobs."""
    target = packing / "archive.tar"
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
            "architecture": image.architecture or ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": _configuration(image),
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in mine]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MEDIA.format("manifest.v1+json"),
            "config": keep(json.dumps(config).encode(), "config.v1+json"),
            "layers": mine,
        }
        described = keep(json.dumps(manifest).encode(), "manifest.v1+json")
        names = {
            "io.containerd.image.name": image.name,
            "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
        }
        manifests.append({**described, "annotations": names})
    index = {
        "schemaVersion": 2,
        "mediaType": _MEDIA.format("index.v1+json"),
        "manifests": manifests,
    }
    with tarfile.open(target, "w") as tar:
        _put(tar, "oci-layout", Entry(0o644, content=b'{"imageLayoutVersion":"1.0.0"}'))
        _put(tar, "index.json", Entry(0o644, content=json.dumps(index).encode()))
        for digest, path in sorted(blobs.items()):
            _put(tar, f"blobs/sha256/{digest}", Entry(0o644, source=path))
    return target


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": _MEDIA.format(kind), "digest": f"sha256:{digest}", "size": size}


def _pack_layer(layer: Layer, packing: Path) -> tuple[Path, str]:
    handle, name = tempfile.mkstemp(prefix="layer-", dir=packing)
    os.close(handle)
    path = Path(name)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for where, entry in _with_parents(layer.entries):
            _put(tar, where, entry, layer.dated)
    with path.open("rb") as file:
        return path, hashlib.file_digest(file, "sha256").hexdigest()


def _with_parents(entries: Mapping[str, Entry]) -> Iterable[tuple[str, Entry]]:
    whole = dict(entries)
    for path in entries:
        for parent in Path(path).parents:
            if str(parent) != ".":
                whole.setdefault(str(parent), Entry(0o755))
    return sorted(whole.items())


def _put(tar: tarfile.TarFile, path: str, entry: Entry, dated: bool = False) -> None:
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
        info.size, info.mtime = status.st_size, int(status.st_mtime) if dated else 0
        with entry.source.open("rb") as file:
            tar.addfile(info, file)
    else:
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
