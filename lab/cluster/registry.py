"""A registry for the lab's node: read-only, from OCI archives of this machine.

The node's containerd pulls all images from this registry, whatever registry their names have. So
`imagePullPolicy: Always` works without a network. The registry serves the archives as they were
when it started, even if the cache has removed them since.
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
"""containerd's configuration of registries, which it reads at each pull."""
_PATH: Final = re.compile(r"/v2/(?P<name>.+)/(?:manifests|blobs)/(?P<reference>[^/]+)")
_BLOB: Final = "blobs/sha256/"


class _Handler(BaseHTTPRequestHandler):
    """Answers containerd. digests: images' digests by name. media_types: by digest. blobs: each
    blob's file descriptor, offset and size, by digest."""

    protocol_version = "HTTP/1.1"
    digests: ClassVar[dict[str, str]]
    media_types: ClassVar[dict[str, str]]
    blobs: ClassVar[dict[str, tuple[int, int, int]]]

    def do_HEAD(self) -> None:
        """Answer without a body. containerd requests a tag's digest with HEAD."""
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
            # containerd sends the registry of the image's name to a mirror, as the parameter ns.
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
        """Log nothing: containerd's log has each pull."""


@contextmanager
def serving(archives: Sequence[Path], address: str) -> Iterator[str]:
    """Serve the archives' images during the context. Yield the content for HOSTS_FILE."""
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
            # Without `server`, containerd would request an image that is missing here from the
            # registry in its name, and wait in vain.
            try:
                yield f'server = "{url}"\n[host."{url}"]\n  capabilities = ["pull", "resolve"]\n'
            finally:
                server.shutdown()
