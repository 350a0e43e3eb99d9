"""Checks the image of a container that was created and not started, by Docker's archive API.

A program that cannot load the library would run without a limit. Links in the image at our paths
could be changed by a program in the container.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import posixpath
import stat
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import docker

from gpuslice.contract import names
from gpuslice.contract.library_file import MACHINES
from nri_plugin.host import entrypoint, rooted_open
from nri_plugin.host.entrypoint import File, Process, Read
from nri_plugin.policy import preload_list
from nri_plugin.policy.places import with_parents
from nri_plugin.policy.refusals import Reason, refused

_LINKS_MAX: Final = 40
_CHUNK: Final = 1 << 16
_READ_MAX: Final = 64 << 20
"""Limit of the bytes that are read of one program. Its headers are at its beginning, or where a
tool such as patchelf has moved them."""
_GO_DIRECTORY: Final = 1 << 31
_GO_LINK: Final = 1 << 27
_GO_SPECIAL: Final = 0x07280000
"""Bits of Go's file modes. SPECIAL: device, FIFO, socket and what it calls irregular."""


class ImageError(Exception):
    """The image's program cannot be limited. The text names the program and what to do."""


class Archive:
    """The files of a container. mounted: sources on this host of what CDI will mount, by path."""

    def __init__(
        self, client: docker.APIClient, container: str, mounted: Mapping[str, str]
    ) -> None:
        self._client, self._mounted = client, mounted
        self._url = f"{client.base_url}/v{client.api_version}/containers/{container}/archive"

    def described(self, path: str) -> Mapping[str, Any]:
        """Return what Docker says of the path, without following a link. Raises OSError."""
        answer = self._client.head(self._url, params={"path": path})
        if answer.status_code == HTTPStatus.NOT_FOUND:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not answer.ok:  # no OSError: the search on PATH would go on
            raise ImageError(f"{path}: Docker answers {answer.status_code} {answer.reason}")
        text = base64.b64decode(answer.headers["X-Docker-Container-Path-Stat"])
        return dict(json.loads(text))

    @contextmanager
    def lookup(self, path: str) -> Iterator[File]:
        """Find a file, and follow links. See entrypoint.Lookup."""
        for _ in range(_LINKS_MAX):
            path = posixpath.normpath(path)
            if source := self._mounted.get(path):
                mode = os.stat(source).st_mode
                yield File(posixpath.basename(path), mode, partial(_reading_of_host, source))
                return
            described = self.described(path)
            if not described["linkTarget"]:
                mode = mode_of(described)
                yield File(described["name"], mode, partial(self.reading, path, mode))
                return
            path = described["linkTarget"]
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

    @contextmanager
    def reading(self, path: str, mode: int) -> Iterator[Read]:
        """Yield a function that reads the file at `path`, which is no link. Raises OSError."""
        if not stat.S_ISREG(mode) or not mode & 0o111:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        data = bytearray()
        plain = {"Accept-Encoding": "identity"}
        answer = self._client.get(self._url, params={"path": path}, headers=plain, stream=True)
        if not answer.ok:
            raise ImageError(f"{path}: Docker answers {answer.status_code} {answer.reason}")
        with closing(answer), tarfile.open(fileobj=answer.raw, mode="r|") as tar:
            member = tar.next()
            content = tar.extractfile(member) if member else None
            assert content is not None

            def read(offset: int, size: int) -> bytes:
                while len(data) < offset + size and (chunk := content.read(_CHUNK)):
                    data.extend(chunk)
                    if len(data) > _READ_MAX:
                        raise OSError(errno.EFBIG, f"its headers are beyond {_READ_MAX} bytes")
                return bytes(data[offset : offset + size])

            yield read


@contextmanager
def _reading_of_host(source: str) -> Iterator[Read]:
    with open(source, "rb") as file:
        yield lambda offset, size: os.pread(file.fileno(), size, offset)


def mode_of(described: Mapping[str, Any]) -> int:
    """Return the mode of a file. Docker reports that of Go."""
    mode = int(described["mode"])
    permissions = mode & 0o777
    if mode & _GO_DIRECTORY:
        return stat.S_IFDIR | permissions
    if mode & _GO_LINK:
        return stat.S_IFLNK | permissions
    return (stat.S_IFIFO if mode & _GO_SPECIAL else stat.S_IFREG) | permissions


def check(client: docker.APIClient, container: str, mounted: Mapping[str, str]) -> None:
    """Raise Refused if the image has other files at our paths, ImageError if no limit can be
    enforced in the program that it starts, and UninspectableError if that cannot be executed."""
    archive = Archive(client, container, mounted)
    for place in (names.CONTAINER_DIR, *names.CONTAINER_PRELOADS):
        for path in with_parents(place)[:-1]:
            _check_path(archive, path)
    config = client.inspect_container(container)["Config"]
    command = [*(config["Entrypoint"] or ()), *(config["Cmd"] or ())]
    env = dict(line.partition("=")[::2] for line in config["Env"] or ())
    process = Process(command, env, config["WorkingDir"] or "/")
    machine = MACHINES[os.uname().machine]
    if why := entrypoint.why_out_of_reach(archive.lookup, process, machine, False):
        raise ImageError(f"entry point: {why}; use a dynamically linked program of glibc")


def _check_path(archive: Archive, path: str) -> None:
    try:
        described = archive.described(path)
    except FileNotFoundError:
        return
    mode = mode_of(described)
    if path not in names.CONTAINER_PRELOADS:
        if not stat.S_ISDIR(mode):
            raise refused(Reason.IMAGE_PATH, path=path, what=rooted_open.kind(mode))
    elif not stat.S_ISREG(mode):
        raise refused(Reason.IMAGE_PRELOAD, path=path, what=rooted_open.kind(mode))
    elif described["size"]:
        with archive.reading(path, mode | 0o111) as read:
            named = preload_list.entries(read(0, preload_list.MAX_BYTES))
        if named:
            what = f"it names {named[0].decode(errors='replace')}"
            raise refused(Reason.IMAGE_PRELOAD, path=path, what=what)
