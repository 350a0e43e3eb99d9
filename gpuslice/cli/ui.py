"""The command `gpuslice ui`: one page on 127.0.0.1 with the user's rights in the cluster.

Nothing is exposed in the cluster. Another program or web page on this machine needs the random
token of the URL, and a page of another name that resolves to 127.0.0.1 has a wrong Host header.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiohttp import web

from gpuslice.cli import connecting
from gpuslice.cli.cluster import Cluster, document
from gpuslice.cli.live import Reader
from gpuslice.kube.access import Access
from gpuslice.kube.errors import KubeError

_FILES: Final = {"": ("ui.html", "text/html"), "ui.js": ("ui.js", "text/javascript")}
_NODES: Final = 50
"""The most nodes of one answer. The filter selects others."""
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self';"
    " style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_DESCRIPTION: Final = """\
Serve one page on 127.0.0.1 that shows nodes, GPUs and slices with their use, and pods that wait.
It reads the cluster with the rights of the kubeconfig, as `gpuslice top` does. Ctrl-C ends it.
"""


@dataclass(eq=False)
class Page:
    """The page and its data. hosts: the accepted Host headers."""

    reader: Reader
    token: str
    hosts: frozenset[str] = frozenset()
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def respond(self, request: web.BaseRequest) -> web.StreamResponse:
        _, token, name = (*request.path.split("/", 2), "", "")[:3]
        if request.headers.get("Host") not in self.hosts:
            return _text(421, "Host: invalid value: must be the address that gpuslice ui printed")
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return _text(403, "token: invalid value: open the URL that gpuslice ui printed")
        if request.method != "GET":
            return _text(405, "method: invalid value: must be GET")
        if name == "data":
            return await self._data(request.query.get("node", ""))
        if name not in _FILES:
            return _text(404, "path: invalid value: must be that of the page")
        file, kind = _FILES[name]
        return _text(200, (Path(__file__).parent / file).read_text(), kind)

    async def _data(self, wanted: str) -> web.Response:
        """Return the nodes whose name contains the text, with their use."""
        async with self._reading:
            try:
                whole = await self.reader.grants()
            except KubeError as error:
                return _text(502, f"the API server: {error}")
            matching = [node for node in whole.nodes if wanted in node.name]
            shown = Cluster(matching[:_NODES], whole.waiting)
            await self.reader.use(shown.nodes)
            found = document(shown, self.reader.notices.values()) | {"total": len(whole.nodes)}
        return _text(200, json.dumps(found), "application/json")


def _text(status: int, text: str, kind: str = "text/plain") -> web.Response:
    return web.Response(status=status, text=f"{text}\n", content_type=kind, headers=_HEADERS)


def main(arguments: Sequence[str], prog: str) -> int:
    parser = connecting.parser(prog, "ui", _DESCRIPTION, "only its pods")
    parser.add_argument("--port", type=int, default=0, help="by default a free one")
    parser.add_argument("--no-browser", action="store_true", help="only print the URL")
    return connecting.run(_run, parser.parse_args(arguments))


def _run(chosen: argparse.Namespace, access: Access) -> int:
    asyncio.run(_serve(chosen, access))
    return 0


async def _serve(chosen: argparse.Namespace, access: Access) -> None:
    async with connecting.connect(chosen, access) as kube:
        page = Page(Reader(kube, chosen.namespace), secrets.token_urlsafe(24))
        await page.reader.grants()  # a missing right ends the command before the browser opens
        runner = web.ServerRunner(web.Server(page.respond, access_log=None), shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", chosen.port).start()
            port = runner.addresses[0][1]
            page.hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
            url = f"http://127.0.0.1:{port}/{page.token}/"
            sys.stdout.write(f"{url}\n")
            sys.stdout.flush()
            if not chosen.no_browser:
                with suppress(webbrowser.Error):
                    await asyncio.to_thread(webbrowser.open, url)
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()
