"""The agent's API server client, ended by SIGKILL in the middle of a write.

    python -m tests.cluster.agent.killed NODE KUBECONFIG HOLDS [--at WHAT --when sent|answered]

HOLDS: the containers' holdings, in the format of `said`. Killed right before the first write of
that kind is sent, or right after its answer arrived and before it is processed; without --at,
another process kills it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gpuslice.kube.client import Kube
from nri_plugin.kube import cluster, verification
from nri_plugin.policy import ledger
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Pod, Share
from tests.cluster.agent.side import Side

WRITES: Final = ("device", "status", "label", "lease", "event")
WHEN: Final = ("sent", "answered")
ABSENT_S: Final = 0.5
"""Instead of a minute."""


def said(holds: Iterable[Hold]) -> str:
    return json.dumps(
        [
            [hold.container_id, hold.pod_uid, hold.pod.namespace, hold.pod.name, uuid, part]
            for hold in holds
            for uuid, part in ((u, p.memory_bytes) for u, p in hold.parts.items())
        ]
    )


def holds_from(text: str) -> tuple[Hold, ...]:
    return tuple(
        ledger.hold(c, c, False, Pod(uid, ns, name), "main", [Share(uuid, 1, memory_bytes, 50)])
        for c, uid, ns, name, uuid, memory_bytes in json.loads(text)
    )


def kind_of(method: str, path: str) -> str:
    parts = path.split("/")
    found = {"devices": "device", "leases": "lease", "events": "event"}
    named = next((found[part] for part in reversed(parts) if part in found), "")
    return named or ("status" if parts[-1] == "status" else "label")


class Fatal(Kube):
    at = when = ""

    async def _write(self, method: str, path: str, *rest: Any) -> Any:
        is_fatal = kind_of(method, path) == self.at
        if is_fatal and self.when == "sent":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await super()._write(method, path, *rest)
        if is_fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("node")
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("holds")
    parser.add_argument("--at", default="", choices=WRITES)
    parser.add_argument("--when", default="", choices=WHEN)
    asked = parser.parse_args()
    Fatal.at, Fatal.when = asked.at, asked.when
    setattr(cluster, "Kube", Fatal)  # noqa: B010 (mypy takes it for a constant)
    setattr(verification, "ABSENT_S", ABSENT_S)  # noqa: B010
    side = Side(asked.node, asked.kubeconfig, {})
    side.holds = holds_from(asked.holds)
    side.start()
    sys.stdout.write("up\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main()
