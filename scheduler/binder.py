"""Binds pods: chooses and reserves the GPUs, POSTs one Binding, and determines its outcome.

GPUs are chosen and reserved without an await in between. They stay reserved as long as the Binding
may be applied. If the API server's answer is missing or a conflict, the outcome is unknown, and the
binder reads the pod. A conflict may also mean a failure of the server's store. See docs/adr/0019.

The binder runs on one event loop. Only the binder and the cache change State.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from gpuslice.kube.client import IGNORE
from gpuslice.kube.errors import KubeError
from gpuslice.kube.reflector import Backoff
from scheduler.core.place import Placement
from scheduler.decisions.choice import BOUND, Answer, Choice, Undetermined, bound_to, choose
from scheduler.decisions.state import Assumed, State
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes import binding
from scheduler.kubernetes.arguments import BindingArguments
from scheduler.kubernetes.binding import PodState, Verdict, pod_state, verdict
from scheduler.kubernetes.requests import Pending
from scheduler.leadership import POST_S, Leadership

WORK_S: Final = 8.0
"""A bind starts no new operation after this time, so its answer comes at most POST_S later.
kube-scheduler's timeout must exceed WORK_S, POST_S and the wait for the Lease together."""
GET_S: Final = 3.0
MAX_POSTS: Final = 16
"""The most POSTs at a time; further ones wait in order. More would get no answer sooner, and each
needs a connection, whose TLS handshake costs as much as a Binding."""
UNOBSERVED_S: Final = 30.0
"""The binder reads a pod from the API server if no watch has shown it bound after this time."""

_Task = asyncio.Task[Answer]
_Work = Coroutine[Any, Any, Answer]

_NOT_HOLDER: Final = KubeError(0, "NotLeaseHolder", "this process does not hold the Lease")


class Client(Protocol):
    """The methods of `kube.Kube` that the binder uses."""

    async def get(self, path: str, *, timeout_s: float = ...) -> Any: ...
    async def post(
        self, path: str, body: Any, *, timeout_s: float = ..., **query: object
    ) -> Any: ...


@dataclass(frozen=True, slots=True)
class _SentBinding:
    """A sent Binding of unknown outcome. versions: it may still be applied while the pod's
    resourceVersion is one of these."""

    arguments: BindingArguments
    versions: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Job:
    """The work on one pod. arguments: of the bind call; None if the job only checks an outcome."""

    arguments: BindingArguments | None
    task: _Task


class Binder:
    """Binds pods, see the module. clock: State's clock. wall_ns: nanoseconds since the epoch."""

    def __init__(
        self,
        state: State,
        kube: Client,
        guard: Leadership,
        verbs: Verbs,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._state = state
        self._kube = kube
        self._guard = guard
        self._verbs = verbs
        self._clock = clock
        self._posts = asyncio.Semaphore(MAX_POSTS)
        self._jobs: dict[str, _Job] = {}
        self._sent: dict[str, _SentBinding] = {}
        self._noticed: dict[str, Pending] = {}

    async def finish(self, timeout_s: float) -> None:
        """Wait until all current jobs have ended, or until the timeout."""
        if tasks := [job.task for job in self._jobs.values()]:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def bind(self, arguments: BindingArguments) -> Answer:
        """Bind the pod. The work continues if the caller is cancelled."""
        until_s = self._clock() + WORK_S
        while (job := self._jobs.get(arguments.uid)) is not None:
            if job.arguments == arguments:
                return await asyncio.shield(job.task)
            await asyncio.wait((job.task,))
        pending = self._verbs.pending_pod(arguments.uid)
        choice = Undetermined() if pending is None else self._choose(arguments, pending)
        if isinstance(choice, Answer):
            return choice
        return await asyncio.shield(self._begin(arguments, self._bind(arguments, choice, until_s)))

    def take_notices(self) -> Sequence[Pending]:
        """Return the pods with `notices` whose GPUs were chosen since the last call."""
        noticed, self._noticed = [*self._noticed.values()], {}
        return noticed

    async def check_overdue(self) -> None:
        """Read the pods whose Bindings were sent long ago and not observed: the pod may be gone, or
        the Binding was not applied. Call this every few seconds."""
        for uid in [uid for uid in self._sent if self._state.assumed.get(uid) is None]:
            if uid not in self._jobs:
                del self._sent[uid]
        for uid in self._state.overdue(self._clock()):
            sent = self._sent.get(uid)
            if sent is None or uid in self._jobs:
                continue  # an earlier check found the outcome, or a job is at work
            answer = await self._begin(sent.arguments, self._check(sent), of_bind=False)
            if answer.error:
                return  # the API server does not answer, so further reads would fail too

    # --- jobs: at most one per pod

    def _begin(self, arguments: BindingArguments, work: _Work, of_bind: bool = True) -> _Task:
        task = asyncio.create_task(self._run(arguments.uid, work))
        self._jobs[arguments.uid] = _Job(arguments if of_bind else None, task)
        return task

    async def _run(self, uid: str, work: _Work) -> Answer:
        try:
            return await work
        finally:
            if uid not in self._sent:
                self._state.forget(uid)
            del self._jobs[uid]

    async def _bind(
        self, arguments: BindingArguments, choice: Choice | Undetermined, until_s: float
    ) -> Answer:
        if isinstance(choice, Undetermined):
            pod = await self._read(arguments, until_s)
            if isinstance(pod, Answer):
                return pod
            answer = self._apply(arguments, pod)
            if answer is not None:
                return answer
            again = self._choose(arguments, pod.pending)
            if isinstance(again, Answer):
                return again
            if isinstance(again, Undetermined):
                why = "the API server returned the pod unchanged"
                return self._unconfirmed(arguments.uid, why)
            choice = again
        return await self._write(arguments, choice, until_s)

    async def _write(self, arguments: BindingArguments, choice: Choice, until_s: float) -> Answer:
        """Repeat the POST until its outcome is known or `until_s` is reached."""
        uid, pause = arguments.uid, Backoff()
        while True:
            # 1. Wait until fewer than MAX_POSTS are in progress, and send the Binding.
            if not await self._post_begins(until_s):
                return self._unconfirmed(uid, "the API server took too long to answer")
            try:
                assumed = self._state.assumed.get(uid)
                if choice.placement is not None and (
                    assumed is None or assumed.placement != choice.placement
                ):
                    return self._overtaken(arguments)
                error = await self._post(arguments, choice)
            finally:
                self._posts.release()
            # 2. If the API server's answer shows the outcome, return it.
            if error is None:
                return BOUND
            if error is _NOT_HOLDER:
                return self._unconfirmed(uid, self._guard.refusal())
            outcome = verdict(error)
            if outcome is Verdict.REFUSED and uid not in self._sent:
                return Answer(str(error))
            wait_s = pause.next_s()
            # 3. If the Binding may have been applied, read the pod.
            if outcome is not Verdict.NOT_DONE:
                pod = await self._read(arguments, until_s)
                if isinstance(pod, Answer):
                    return self._unconfirmed(uid, f"{error}; {pod.error}")
                answer = self._apply(arguments, pod)
                if answer is not None:
                    return answer
                if pod.pending.request != choice.request:
                    return self._unconfirmed(uid, "the pod was changed meanwhile")
                if choice.placement is not None and pod.pending.version != choice.version:
                    choice, wait_s = replace(choice, version=pod.pending.version), 0.0
            # 4. Wait, and send the Binding again.
            left_s = until_s - self._clock()
            if left_s <= 0:
                return self._unconfirmed(uid, str(error))
            await asyncio.sleep(min(wait_s, left_s))

    async def _check(self, sent: _SentBinding) -> Answer:
        """Read the pod, and record a sent Binding's outcome. Return BOUND, or the error."""
        arguments = sent.arguments
        pod = await self._read(arguments, self._clock())
        if isinstance(pod, Answer):
            return pod
        self._apply(arguments, pod)
        assumed = self._state.assumed.get(arguments.uid)
        if assumed is not None and arguments.uid in self._sent:
            self._assume(arguments, assumed.placement, assumed.annotations)
        return BOUND

    # --- steps

    def _choose(
        self, arguments: BindingArguments, pending: Pending
    ) -> Choice | Answer | Undetermined:
        """Choose and reserve the GPUs for the Binding, without an await."""
        policy = self._verbs.policy(pending)
        choice = choose(self._state, pending, arguments.node, policy, self._wall_ns())
        if isinstance(choice, Choice) and choice.placement and choice.annotations:
            if pending.notices and self._state.assumed.get(arguments.uid) is None:
                self._noticed[arguments.uid] = pending
            self._assume(arguments, choice.placement, choice.annotations)
        return choice

    def _assume(
        self, arguments: BindingArguments, placement: Placement, annotations: Mapping[str, str]
    ) -> None:
        assumed = Assumed(placement, annotations, self._clock() + UNOBSERVED_S)
        self._state.assume(arguments.uid, assumed, f"{arguments.namespace}/{arguments.name}")

    async def _post_begins(self, until_s: float) -> bool:
        """Wait to acquire `_posts`, which the caller releases. Return False after `until_s`."""
        try:
            async with asyncio.timeout(max(0.0, until_s - self._clock())):
                await self._posts.acquire()
        except TimeoutError:
            return False
        if self._clock() > until_s:
            self._posts.release()
            return False
        return True

    async def _post(self, arguments: BindingArguments, choice: Choice) -> KubeError | None:
        """Send the Binding once. Return None if the pod is bound, else the error."""
        uid, version = arguments.uid, choice.version
        before = self._sent.get(uid)
        body = binding.binding(*arguments, choice.annotations, self._guard.writer, version)
        if not self._guard.may_write():
            return _NOT_HOLDER
        if choice.placement is not None:
            versions = before.versions if before else frozenset[str]()
            self._sent[uid] = _SentBinding(arguments, versions | {version})
        try:
            path = f"{arguments.path}/binding"
            await self._kube.post(path, body, timeout_s=POST_S, fieldValidation=IGNORE)
        except KubeError as error:
            if verdict(error) is not Verdict.UNKNOWN:
                # This Binding was not applied. An earlier one may have been applied.
                if before is None:
                    self._sent.pop(uid, None)
                else:
                    self._sent[uid] = before
            return error
        return None

    async def _read(self, arguments: BindingArguments, until_s: float) -> PodState | Answer:
        """Return the pod that the API server has, or why it could not be read in time."""
        pause, dialects = Backoff(), self._state.dialects
        while True:
            if self._clock() > until_s:
                return Answer("the pod could not be read in time")
            try:
                raw = await self._kube.get(arguments.path, timeout_s=GET_S)
                return pod_state(raw, arguments.uid, dialects)
            except KubeError as error:
                if error.status == 404:
                    return pod_state({}, arguments.uid, dialects)
                left_s = until_s - self._clock()
                if left_s <= 0:
                    return Answer(f"the pod could not be read: {error}")
                await asyncio.sleep(min(pause.next_s(), left_s))

    def _apply(self, arguments: BindingArguments, pod: PodState) -> Answer | None:
        """Remove the pod's Binding from `_sent` if the API server can no longer apply it. Return
        None if the pod can be bound, else the answer."""
        uid = arguments.uid
        assumed, sent = self._state.assumed.get(uid), self._sent.get(uid)
        if pod.gone or (pod.deleting and not pod.node):
            self._sent.pop(uid, None)
            return Answer("the pod is gone" if pod.gone else "the pod is being deleted")
        if pod.node:
            if assumed is not None and assumed.placement.node != pod.node:
                self._sent.pop(uid, None)
            return bound_to(pod.node, arguments.node)
        version = pod.pending.version
        if sent is not None and version in sent.versions:
            self._sent[uid] = _SentBinding(sent.arguments, frozenset((version,)))
        elif sent is not None:
            del self._sent[uid]
            if sent.arguments.node != arguments.node:
                self._state.forget(uid)
        return None

    def _overtaken(self, arguments: BindingArguments) -> Answer:
        """Return the answer for a pod whose outcome the watch has already reported."""
        self._sent.pop(arguments.uid, None)
        if self._state.is_bound(arguments.uid):
            return bound_to(self._state.node_of(arguments.uid), arguments.node)
        return Answer("the pod is gone")

    def _unconfirmed(self, uid: str, why: str) -> Answer:
        """Return the answer for a bind that stops before its outcome is known."""
        if uid not in self._sent:
            return Answer(why)
        assumed = self._state.assumed.get(uid)
        node = "" if assumed is None else f" to {assumed.placement.node}"
        return Answer(f"binding{node} not confirmed: {why}; kube-scheduler retries")
