"""An API server in memory: it lists, watches, makes, merges and deletes objects of any kind."""

from __future__ import annotations

import asyncio
import copy
import re
from typing import Any

import orjson
from aiohttp import web

from tests.kube.api_server import json, listed, refuse

Json = dict[str, Any]


def merged(before: Any, patch: Any) -> Any:
    """Return the object after a merge patch."""
    if not isinstance(patch, dict):
        return patch
    after = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        after[key] = merged(after.get(key), value)
    return {key: value for key, value in after.items() if value is not None}


class Api:
    """objects: by path. refused: paths whose requests fail, with the status. writes: method and
    path of each."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.refused: dict[str, int] = {}
        self.writes: list[tuple[str, str]] = []
        self._watchers: list[tuple[str, asyncio.Queue[Json]]] = []
        self._version = 1

    def put(self, path: str, raw: Json) -> None:
        """Store an object, as another client would."""
        kind = "MODIFIED" if path in self.objects else "ADDED"
        self._version += 1
        stored = copy.deepcopy(raw)
        before = self.objects.get(path, {})
        generation = before.get("metadata", {}).get("generation", 0)
        changed = before.get("spec") != stored.get("spec")
        stored["metadata"] |= {"resourceVersion": str(self._version), "uid": path}
        stored["metadata"]["generation"] = generation + changed
        self.objects[path] = stored
        self._tell(kind, path, stored)

    def remove(self, path: str) -> None:
        self._tell("DELETED", path, self.objects.pop(path))

    def _tell(self, kind: str, path: str, raw: Json) -> None:
        for collection, queue in self._watchers:
            if _is_in(path, collection):
                queue.put_nowait({"type": kind, "object": raw})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path, method = request.path.removesuffix("/status"), request.method
        if status := self.refused.get(path):
            return refuse(status, "Refused", "refused by the test")
        if method == "GET":
            return await self._read(request)
        self.writes.append((method, request.path))
        if method == "POST":
            body = orjson.loads(await request.read())
            if within := re.search("/namespaces/([^/]+)/", path):
                body["metadata"]["namespace"] = within[1]
            path = f"{path}/{body['metadata']['name']}"
            self.put(path, body)
        elif path not in self.objects:
            return refuse(404, "NotFound")
        elif method == "PATCH":
            self.put(path, merged(self.objects[path], orjson.loads(await request.read())))
        elif orjson.loads(await request.read()) != {"preconditions": {"uid": path}}:
            return refuse(409, "Conflict", "another object may have this name")
        else:
            self.remove(path)
        return json(self.objects.get(path, {}))

    async def _read(self, request: web.Request) -> web.StreamResponse:
        if request.path in self.objects:
            return json(self.objects[request.path])
        if "watch" not in request.query:
            there = [raw for path, raw in self.objects.items() if _is_in(path, request.path)]
            return listed(*there, version=str(self._version))
        queue: asyncio.Queue[Json] = asyncio.Queue()
        self._watchers.append((request.path, queue))
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(orjson.dumps(await queue.get()) + b"\n")


def _is_in(path: str, collection: str) -> bool:
    """Return whether the object is of the collection, also of one over all namespaces."""
    parent, _, plural = collection.rpartition("/")
    within, _, _ = path.rpartition("/")
    return within == collection or (
        within.startswith(f"{parent}/namespaces/") and within.endswith(f"/{plural}")
    )
