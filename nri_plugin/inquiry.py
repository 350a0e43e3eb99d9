"""Asks the API server about pods that its watch has not told of: seldom, and never many at once.

A creation asks and waits, half a second at most; running grants are asked about beside, each again
and again until somebody answers, at longer and longer intervals. What is answered goes into
bounds.py, where nobody answers, nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from kube.client import Kube, KubeError
from nri_plugin import objects
from nri_plugin.bounds import Bounds
from nri_plugin.model import Pod

_ASK_S: Final = 0.5
"""A container waits for it."""
_AT_ONCE: Final = 8
_FIRST_S: Final = 0.5
_LONGEST_S: Final = 30.0


class Inquiry:
    """silent: whether the API server is known not to answer."""

    def __init__(
        self, kube: Kube, node_name: str, bounds: Bounds, silent: Callable[[], bool]
    ) -> None:
        self._kube = kube
        self._node_name = node_name
        self._bounds = bounds
        self._silent = silent
        self._asking: set[str] = set()
        self._again: dict[str, tuple[float, float]] = {}
        """By UID: not before when, and how long to wait after that."""

    async def ask(self, pod: Pod) -> None:
        if self._silent():
            return
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        try:
            raw = await self._kube.get(path, timeout_s=_ASK_S)
        except KubeError as error:
            if error.status == 404:
                self._bounds.deny(pod.uid, "there is no such pod")
            return
        bound, node_name = objects.bound(raw), objects.node_of(raw)
        if bound.pod.uid != pod.uid:
            mirrored = objects.is_mirror(raw)
            what = "the mirror of a static pod" if mirrored else f"another, {bound.pod.uid}"
            self._bounds.deny(pod.uid, f"the pod of that name is {what}")
        elif node_name != self._node_name:
            self._bounds.deny(pod.uid, f"the pod is bound to {node_name or 'no node'}")
        else:
            self._bounds.vouch(bound)

    def begin(self, group: asyncio.TaskGroup, pods: Iterable[Pod]) -> None:
        """Ask about those of them whose turn it is; returns at once. pods: all that are unknown."""
        now_s, unknown = asyncio.get_running_loop().time(), {pod.uid: pod for pod in pods}
        self._again = {uid: each for uid, each in self._again.items() if uid in unknown}
        for uid, pod in unknown.items():
            not_before_s, wait_s = self._again.get(uid, (now_s, _FIRST_S))
            if len(self._asking) >= _AT_ONCE or uid in self._asking or now_s < not_before_s:
                continue
            self._again[uid] = (now_s + wait_s, min(2 * wait_s, _LONGEST_S))
            self._asking.add(uid)
            group.create_task(self._ask(pod), name=f"ask about {uid}")

    async def _ask(self, pod: Pod) -> None:
        try:
            await self.ask(pod)
        finally:
            self._asking.discard(pod.uid)
