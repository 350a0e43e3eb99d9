"""A registry for the lab's node: read-only, from OCI archives of this machine.

The node's containerd pulls every image from it, whatever registry the image's name has, so that
`imagePullPolicy: Always` works without a network. Responsible for the part of the OCI distribution
specification that a pull uses. Invariant: it serves what the archives had when it started, also
after the cache has removed them.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

HOSTS_FILE: Final = Path("/etc/containerd/certs.d/_default/hosts.toml")
"""containerd reads it at each pull."""
_PATH: Final = re.compile(r"/v2/(?P<name>.+)/(?P<kind>manifests|blobs)/(?P<reference>[^/]+)")
_BLOB: Final = "blobs/sha256/"
_CHUNK_BYTES: Final = 1 << 20


class Content:
    """Images by name and blobs by digest; the files stay open."""

    def __init__(self, archives: Sequence[Path]) -> None:
        self._files = ExitStack()
        self.images: dict[str, str] = {}
        self.media_types: dict[str, str] = {}
        self.blobs: dict[str, tuple[int, int, int]] = {}
        """File descriptor, offset and size."""
        for archive in archives:
            self._add(archive)

    def close(self) -> None:
        self._files.close()

    def _add(self, archive: Path) -> None:
        file = self._files.enter_context(archive.open("rb"))
        with tarfile.open(fileobj=file) as tar:
            for member in tar:
                if member.name.startswith(_BLOB):
                    digest = f"sha256:{member.name.removeprefix(_BLOB)}"
                    self.blobs[digest] = (file.fileno(), member.offset_data, member.size)
            listed = tar.extractfile("index.json")
            assert listed is not None
            for each in json.load(listed)["manifests"]:
                self.images[each["annotations"]["io.containerd.image.name"]] = each["digest"]
                self.media_types[each["digest"]] = each["mediaType"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    content: Content

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def _answer(self, has_body: bool) -> None:
        url = urlsplit(self.path)
        if url.path == "/v2/":
            self._head(200, "application/json", 0)
            return
        registry = parse_qs(url.query).get("ns", [""])[0]
        digest = self._digest(registry, _PATH.fullmatch(url.path))
        if digest not in self.content.blobs:
            error = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": self.path}]}
            body = json.dumps(error).encode()
            self._head(404, "application/json", len(body))
            if has_body:
                self.wfile.write(body)
            return
        file, offset, size = self.content.blobs[digest]
        media_type = self.content.media_types.get(digest, "application/octet-stream")
        self._head(200, media_type, size, digest)
        while has_body and size > 0:
            chunk = os.pread(file, min(size, _CHUNK_BYTES), offset)
            self.wfile.write(chunk)
            offset, size = offset + len(chunk), size - len(chunk)

    def _digest(self, registry: str, asked: re.Match[str] | None) -> str:
        """registry: the one in the image's name, which containerd sends to a mirror."""
        if asked is None:
            return ""
        reference = asked["reference"]
        if asked["kind"] == "blobs" or reference.startswith("sha256:"):
            return reference
        return self.content.images.get(f"{registry}/{asked['name']}:{reference}", "")

    def _head(self, status: int, media_type: str, size: int, digest: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(size))
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """containerd's log has each pull."""


class Registry:
    """A context manager: it serves until the block ends. address: where it listens."""

    def __init__(self, archives: Sequence[Path], address: str) -> None:
        self._content = Content(archives)
        handler = type("_Served", (_Handler,), {"content": self._content})
        self._server = ThreadingHTTPServer((address, 0), handler)
        self.url = f"http://{address}:{self._server.server_address[1]}"

    def hosts(self) -> str:
        """The content of HOSTS_FILE. server: otherwise containerd asks the image's own registry for
        what this one lacks, and waits for an answer that cannot come."""
        return f'server = "{self.url}"\n[host."{self.url}"]\n  capabilities = ["pull", "resolve"]\n'

    def __enter__(self) -> Registry:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._content.close()
