"""A registry for the lab's node: read-only, from OCI archives of this machine.

The node's containerd pulls every image from it, whatever registry the image's name has, so that
`imagePullPolicy: Always` works without a network. It serves what the archives had when it started,
also after the cache has removed them.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs, urlsplit

HOSTS_FILE: Final = Path("/etc/containerd/certs.d/_default/hosts.toml")
"""containerd reads it at each pull."""
_PATH: Final = re.compile(r"/v2/(?P<name>.+)/(?:manifests|blobs)/(?P<reference>[^/]+)")
_BLOB: Final = "blobs/sha256/"


class _Handler(BaseHTTPRequestHandler):
    """digests: by the image's full name. media_types: of manifests. blobs: file descriptor, offset
    and size, by digest."""

    protocol_version = "HTTP/1.1"
    digests: ClassVar[dict[str, str]]
    media_types: ClassVar[dict[str, str]]
    blobs: ClassVar[dict[str, tuple[int, int, int]]]

    def do_HEAD(self) -> None:
        """Answer the head; containerd asks for the digest of a tag so."""
        self._head()

    def do_GET(self) -> None:
        file, offset, size = self._head()
        end = offset + size
        while offset < end:
            chunk = os.pread(file, min(end - offset, 1 << 20), offset)
            self.wfile.write(chunk)
            offset += len(chunk)

    def _head(self) -> tuple[int, int, int]:
        url = urlsplit(self.path)
        asked = _PATH.fullmatch(url.path)
        reference = asked["reference"] if asked else ""
        if asked and not reference.startswith("sha256:"):
            # The registry in the image's name, which containerd sends to a mirror.
            registry = parse_qs(url.query).get("ns", [""])[0]
            reference = self.digests.get(f"{registry}/{asked['name']}:{reference}", "")
        found = self.blobs.get(reference, (0, 0, 0))
        self.send_response(200 if reference in self.blobs or url.path == "/v2/" else 404)
        self.send_header(
            "Content-Type", self.media_types.get(reference, "application/octet-stream")
        )
        self.send_header("Content-Length", str(found[2]))
        self.send_header("Docker-Content-Digest", reference)
        self.end_headers()
        return found

    def log_message(self, format: str, *arguments: Any) -> None:
        """containerd's log has each pull."""


@contextmanager
def serving(archives: Sequence[Path], address: str) -> Iterator[str]:
    """Serve their images meanwhile; the content of HOSTS_FILE."""
    digests, media_types, blobs = {}, {}, {}
    with ExitStack() as files:
        for archive in archives:
            file = files.enter_context(archive.open("rb"))
            with tarfile.open(fileobj=file) as tar:
                for member in tar:
                    if member.name.startswith(_BLOB):
                        digest = f"sha256:{member.name.removeprefix(_BLOB)}"
                        blobs[digest] = file.fileno(), member.offset_data, member.size
                listed = tar.extractfile("index.json")
                assert listed is not None
                for each in json.load(listed)["manifests"]:
                    digests[each["annotations"]["io.containerd.image.name"]] = each["digest"]
                    media_types[each["digest"]] = each["mediaType"]
        content = {"digests": digests, "media_types": media_types, "blobs": blobs}
        handler = type("_Served", (_Handler,), content)
        with ThreadingHTTPServer((address, 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://{address}:{server.server_address[1]}"
            # Without `server` containerd asks the image's own registry for what this one lacks, and
            # waits for an answer that cannot come.
            try:
                yield f'server = "{url}"\n[host."{url}"]\n  capabilities = ["pull", "resolve"]\n'
            finally:
                server.shutdown()
