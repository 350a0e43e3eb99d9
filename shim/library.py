"""Where `libvgpu.so` is, which one it is, and how it gets onto a node.

Programs map the file for as long as they live, so a published file never changes and is never
replaced: it lies under its own SHA-256, and appears there whole, by one rename.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from importlib import resources
from pathlib import Path
from typing import Final

from contract import names

_CHECKOUT_BUILD: Final = Path(__file__).resolve().parent.parent / "build" / "dev" / "lib"


class LibraryError(Exception):
    """The library is not where it should be, or not what it should be; the text says what to do."""


def find() -> Path:
    """The library of this installation: beside this package, or built in this checkout."""
    installed = resources.files("shim").joinpath(names.FILE_LIBRARY)
    candidates = [Path(str(installed)), _CHECKOUT_BUILD / names.FILE_LIBRARY]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    looked = " or ".join(map(str, candidates))
    raise LibraryError(
        f"{names.FILE_LIBRARY} is not in {looked}; "
        "build it: cmake --preset dev && cmake --build --preset dev"
    )


def sha256(path: Path) -> str:
    """Hex digest of the file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def publish(store_dir: Path, source: Path | None = None) -> Path:
    """Put the library at `<store_dir>/<sha256>/libvgpu.so` and return that path.

    Safe to call again, from several processes, and to be killed anywhere: a reader finds either no
    directory of that name or the whole file. What is already there is checked, never overwritten.
    """
    content = (source or find()).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    published = store_dir / digest / names.FILE_LIBRARY
    if not published.exists():
        store_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".new-", dir=store_dir, ignore_cleanup_errors=True
        ) as temporary:
            os.chmod(temporary, 0o755)
            _write_synced(Path(temporary) / names.FILE_LIBRARY, content)
            # A directory does not replace one that has a file in it: whoever is first wins.
            try:
                os.rename(temporary, published.parent)
            except OSError as error:
                if not published.exists():
                    raise LibraryError(f"{published.parent}: {error.strerror}") from error
        _sync_directory(store_dir)
    if sha256(published) != digest:
        raise LibraryError(
            f"{published} is not the file that its directory names; "
            "remove the directory once no container uses it"
        )
    return published


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        os.fchmod(file.fileno(), 0o755)
        file.flush()
        os.fsync(file.fileno())
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
