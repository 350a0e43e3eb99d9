"""Checks the image of a container that was created and not started, by Docker's archive API.

A program that cannot load the library would run without a limit.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import stat
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from tarfile import TarFile, TarInfo
from typing import Any, Final

import docker
from docker.utils import decode_json_header

from gpuslice.contract import names
from gpuslice.contract.library_file import MACHINES
from gpuslice.docker.machine import MachineError
from nri_plugin.host import entrypoint, preload_list
from nri_plugin.host.entrypoint import File, Process, Read
from nri_plugin.policy.refusals import Reason, refused

_LINKS_MAX: Final = 40
_CHUNK: Final = 1 << 16
_READ_MAX: Final = 64 << 20
"""Limit of the bytes that are read of one program. Its headers are at its beginning, or where a
tool such as patchelf has moved them."""


class Archive:
    """The files of a container. mounted: sources on this host of what CDI will mount, by path."""

    def __init__(
        self, client: docker.APIClient, container: str, mounted: Mapping[str, str]
    ) -> None:
        self._client, self._mounted = client, mounted
        self._url = f"{client.base_url}/v{client.api_version}/containers/{container}/archive"

    @contextmanager
    def lookup(self, path: str) -> Iterator[File]:
        """Find a file, and follow links. See entrypoint.Lookup."""
        for _ in range(_LINKS_MAX):
            path = posixpath.normpath(path)
            if source := self._mounted.get(path):
                mode = os.stat(source).st_mode
                yield File(posixpath.basename(path), mode, partial(_reading_of_host, source))
                return
            with self.packed(path) as (described, member, tar):
                if not (path := described["linkTarget"]):
                    kind = stat.S_IFREG if member.isreg() else stat.S_IFDIR
                    yield File(
                        described["name"], kind | member.mode, partial(_reading, member, tar)
                    )
                    return
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

    @contextmanager
    def packed(self, path: str) -> Iterator[tuple[Mapping[str, Any], TarInfo, TarFile]]:
        """Yield what Docker says of the path, its member of an archive, and the archive, without
        following a link. Raises OSError, and ValueError with Docker's message."""
        plain = {"Accept-Encoding": "identity"}
        answer = self._client.get(self._url, params={"path": path}, headers=plain, stream=True)
        with closing(answer):
            if answer.status_code == HTTPStatus.NOT_FOUND:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if not answer.ok:  # no OSError: the search on PATH would go on
                raise ValueError(json.loads(answer.content)["message"])
            described = decode_json_header(answer.headers["X-Docker-Container-Path-Stat"])
            with tarfile.open(fileobj=answer.raw, mode="r|") as tar:
                yield described, tar.next() or TarInfo(), tar


@contextmanager
def _reading(member: TarInfo, tar: TarFile) -> Iterator[Read]:
    content = tar.extractfile(member) if member.isreg() and member.mode & 0o111 else None
    if content is None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    data = bytearray()

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


def check(client: docker.APIClient, container: str, mounted: Mapping[str, str]) -> None:
    """Raise Refused if the image has libraries of its own to preload, MachineError if its program
    cannot be limited, and UninspectableError if its program cannot be executed."""
    archive = Archive(client, container, mounted)
    for path in names.CONTAINER_PRELOADS:
        with suppress(FileNotFoundError), archive.packed(path) as (_, member, tar):
            content = tar.extractfile(member) if member.isreg() else None  # the hook refuses links
            named = preload_list.entries(content.read(preload_list.MAX_BYTES)) if content else ()
            if named:
                what = f"it names {named[0].decode(errors='replace')}"
                raise refused(Reason.IMAGE_PRELOAD, path=path, what=what)
    config = client.inspect_container(container)["Config"]
    command = [*(config["Entrypoint"] or ()), *(config["Cmd"] or ())]
    env = dict(line.partition("=")[::2] for line in config["Env"] or ())
    process = Process(command, env, config["WorkingDir"] or "/")
    machine = MACHINES[os.uname().machine]
    if why := entrypoint.why_out_of_reach(archive.lookup, process, machine, False):
        raise MachineError(f"entry point: {why}; use a dynamically linked program of glibc")
