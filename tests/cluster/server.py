"""Synchronous requests to the API server: any path, as any account."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from lab.cluster.controlplane import ControlPlane

MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
_ANSWER_S: Final = 120.0
_IDLE_S: Final = 60.0
"""The API server closes a connection that is idle for 90 s."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Json
    warning: str = ""

    @property
    def done(self) -> bool:
        return self.status < 300

    @property
    def text(self) -> str:
        """The message of a refusal. If a policy refused, the policy's own message."""
        message = str(self.body.get("message", ""))
        return message.partition("denied request: ")[2] or message

    @property
    def policy(self) -> str:
        """The ValidatingAdmissionPolicy that refused, or "" if no policy did."""
        return str(self.body.get("message", "")).partition("AdmissionPolicy '")[2].split("'")[0]


class Server:
    """A connection to the API server. user: an account of the control plane. token: the token of
    any other account, in place of `user`."""

    def __init__(self, plane: ControlPlane, user: str = "admin", token: str = "") -> None:
        host, _, port = plane.server.rpartition("/")[2].partition(":")
        tls = ssl.create_default_context(cafile=str(plane.ca))
        self._connection = http.client.HTTPSConnection(
            host, int(port), timeout=_ANSWER_S, context=tls
        )
        self._token = token or plane.token(user)
        self._asked_s = time.monotonic()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
        user: str = "",
        group: str = "",
    ) -> Answer:
        """user, group: the identity that the administrator impersonates."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content}
        posing = {"Impersonate-User": user, "Impersonate-Group": group}
        headers |= {key: value for key, value in posing.items() if value}
        sent = None if body is None else json.dumps(body)
        if time.monotonic() - self._asked_s > _IDLE_S:
            self._connection.close()  # the next request opens a new connection
        self._asked_s = time.monotonic()
        self._connection.request(method, path, sent, headers)
        answer = self._connection.getresponse()
        warning = answer.headers.get("Warning", "")
        return Answer(answer.status, json.loads(answer.read() or b"{}"), warning)

    def get(self, path: str) -> Json:
        return self.ask("GET", path).body

    def changes(self, collection: str, version: str) -> list[Json]:
        """Return the events of a watch for one second, in their order, since the version."""
        asked = f"{collection}?watch=true&timeoutSeconds=1&resourceVersion={version}"
        headers = {"Authorization": f"Bearer {self._token}"}
        self._connection.request("GET", asked, headers=headers)
        answer = self._connection.getresponse()
        events = [json.loads(line) for line in answer.read().splitlines()]
        assert answer.status == 200 and not any(each["type"] == "ERROR" for each in events), events
        return events

    def patch(self, path: str, body: Mapping[str, Any]) -> Answer:
        return self.ask("PATCH", path, body, MERGE_PATCH)

    def make(self, collection: str, raw: Json) -> str:
        answer = self.ask("POST", collection, raw)
        assert answer.done, answer.text
        return f"{collection}/{raw['metadata']['name']}"

    def remove(self, path: str) -> None:
        """Delete the object at once, without its finalizers, because no controller runs."""
        self.patch(path, {"metadata": {"finalizers": None}})
        self.ask("DELETE", f"{path}?gracePeriodSeconds=0")

    @contextmanager
    def made(self, collection: str, raw: Json) -> Iterator[str]:
        path = self.make(collection, raw)
        try:
            yield path
        finally:
            self.remove(path)
