"""Lists what the first frame of `gpuslice top` shows, by the standard library alone.

The API server answers while Python imports asyncio and rich. An unusual answer or connection is
None, and the client then makes the request.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from http.client import HTTPException, HTTPSConnection
from threading import Thread
from typing import Final
from urllib.parse import urlencode, urlsplit

import orjson

from gpuslice.contract import names
from gpuslice.kube.access import Access
from gpuslice.kube.errors import NOT_FOUND
from gpuslice.kube.fields import Json

DEVICES: Final = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
PODS: Final = "/api/v1/pods"
SLICES: Final = f"/apis/{names.DRA_API_VERSION}/resourceslices"
CLAIMS: Final = f"/apis/{names.DRA_API_VERSION}/resourceclaims"
LIVE_PODS: Final = "status.phase!=Succeeded,status.phase!=Failed"
"""The field selector of pods that hold or want a share."""
CACHED: Final = "0"
"""The API server answers from its cache, which is a moment old, and need not read etcd."""
OUR_SLICES: Final = f"spec.driver={names.DRA_DRIVER}"
READ: Final = {DEVICES: "", PODS: LIVE_PODS, SLICES: OUR_SLICES, CLAIMS: ""}
"""The lists and their field selectors. Kubernetes before 1.34 does not have the last two."""

Lists = Sequence[Future[Sequence[Json] | None]]  # in the order of READ


def start(access: Access) -> Lists:
    """Start the lists in threads, which do not outlive the command."""
    sys.setswitchinterval(0.0005)  # the threads need the interpreter for each 16 KiB
    lists: Lists = [Future() for _ in READ]
    for found, query in zip(lists, READ.items(), strict=True):
        read = partial(_list, access, *query)
        Thread(target=lambda to, of: to.set_result(of()), args=(found, read), daemon=True).start()
    return lists


def _list(access: Access, path: str, selector: str) -> Sequence[Json] | None:
    url = urlsplit(access.server)
    query = urlencode({"resourceVersion": CACHED, "fieldSelector": selector})
    headers = {"Authorization": access.authorization} if access.authorization else {}
    try:
        if access.proxy or access.server_name or not (context := access.context()):
            return None
        host = url.hostname or ""
        with closing(HTTPSConnection(host, url.port, timeout=5.0, context=context)) as connection:
            connection.request("GET", f"{url.path}{path}?{query}", headers=headers)
            response = connection.getresponse()
            answer = orjson.loads(response.read())
        items: Sequence[Json] = () if response.status == NOT_FOUND else answer["items"]
        return items  # another error has none
    except (OSError, HTTPException, LookupError, TypeError, ValueError):
        return None
