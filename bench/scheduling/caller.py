"""Calls the verbs like kube-scheduler, with the same JSON over one persistent connection.

It is minimal, so that the measured time is mostly the extender's.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.scheduling import stage

_HEAD: Final = (
    b"POST /%b HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: kube-scheduler\r\n"
    b"Content-Type: application/json\r\nAccept-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
)
_MOUNT: Final = {
    "name": "kube-api-access-x2x7q",
    "readOnly": True,
    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
}


class Caller:
    """One connection. `call` returns a verb's answer and its latency in seconds."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def call(self, verb: str, body: bytes) -> tuple[Any, float]:
        begun = time.perf_counter()
        self._socket.sendall(_HEAD % (verb.encode(), len(body)) + body)
        answer = self._answer()
        taken_s = time.perf_counter() - begun
        return json.loads(answer), taken_s

    def _answer(self) -> bytes:
        got = b""
        while b"\r\n\r\n" not in got:
            got += self._more()
        head, _, body = got.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        if status.split()[1] != "200":
            raise RuntimeError(f"the extender answers {status}: {body[:300]!r}")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        while len(body) < int(headers["content-length"]):
            body += self._more()
        return body

    def _more(self) -> bytes:
        got = self._socket.recv(1 << 18)
        if not got:
            raise RuntimeError("the extender closes the connection")
        return got


def pod(number: int, percents: Sequence[int]) -> Mapping[str, Any]:
    """Return a Pod with the fields that the API server adds, as kube-scheduler sends it. percents:
    what each container requests of a GPU."""
    stamp = "2026-01-01T00:00:00Z"
    made = stage.asking_pod(f"asks-{number}", percents)
    made["metadata"] |= {
        "namespace": "bench",
        "uid": f"00000000-0000-4000-8000-{number:012}",
        "resourceVersion": str(100_000 + number),
        "generation": 1,
        "creationTimestamp": stamp,
        "managedFields": [
            {"manager": "kubectl", "operation": "Update", "apiVersion": "v1", "time": stamp}
        ],
    }
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "x"}}]}},
    ]
    made["spec"] |= {
        "volumes": [
            {"name": _MOUNT["name"], "projected": {"sources": sources, "defaultMode": 420}}
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "securityContext": {},
        "tolerations": [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
            for key in ("not-ready", "unreachable")
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    for container in made["spec"]["containers"]:
        container |= {
            "command": ["sleep", "365d"],
            "volumeMounts": [_MOUNT],
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "imagePullPolicy": "IfNotPresent",
        }
    return made | {"status": {"phase": "Pending", "qosClass": "Burstable"}}
