"""Prepares and unprepares claims, when the kubelet asks.

A claim is prepared before its first pod's containers are created, and unprepared after its last
pod's have ended. Its size comes from the API server. It is counted in the node's sum before the
kubelet gets its CDI devices. While the container runtime has no session with this agent nothing is
prepared, because a container would then start without its GPU. The kubelet repeats a failed call
after a minute. Therefore a claim waits a while for the end of the pod that still holds its part of
the GPU.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from gpuslice.contract import names
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.log_lines import Line
from nri_plugin.claims.store import ClaimStore
from nri_plugin.containers.parts import Parts
from nri_plugin.messages import dra_pb2 as dra
from nri_plugin.policy import device_claims, ledger, refusals
from nri_plugin.policy.device_claims import Prepared
from nri_plugin.policy.front_ends import FrontEnd
from nri_plugin.policy.refusals import Reason, Refused, refused

_LOG: Final = logging.getLogger(__name__)

_CLAIMS: Final = f"/apis/{names.DRA_API_VERSION}/namespaces/{{}}/resourceclaims/{{}}"
_WAIT_S: Final = 15.0
"""Longest wait for the session, and for a pod that ends. The kubelet's timeout is 45 s."""
_LOOK_S: Final = 1.0
_LOST_S: Final = 60.0
_WAITS: Final = (Reason.GPU_FULL, Reason.CLAIMS_NOT_SERVED)


class Preparing:
    """kube: reads the claims. Each claim is changed by one call at a time."""

    def __init__(self, parts: Parts, store: ClaimStore, kube: Kube) -> None:
        self._parts = parts
        self._store = store
        self._kube = kube
        self._claims = parts.claims.devices
        self._claims.look_again = self._look_again
        self._changing = asyncio.Lock()

    async def prepare(self, wanted: dra.Claim) -> dra.NodePrepareResourceResponse:
        try:
            claim = await self._prepared(wanted)
        except (Refused, KubeError, OSError) as error:
            of = {"namespace": wanted.namespace, "claim": wanted.name}
            _LOG.warning(Line("claim not prepared", **of, problem=error))
            text = refusals.CLAIM_REFUSED.format(claim=wanted.name, text=error)
            return dra.NodePrepareResourceResponse(error=text)
        devices = [
            dra.Device(
                request_names=[share.request.partition("/")[0]],
                pool_name=self._parts.settings.node_name,
                device_name=share.device,
                cdi_device_ids=[f"{names.CDI_KIND_CLAIM}={share.name}"],
                share_id=share.share_id,
            )
            for share in claim.shares
        ]
        return dra.NodePrepareResourceResponse(devices=devices)

    async def unprepare(self, wanted: dra.Claim) -> dra.NodeUnprepareResourceResponse:
        try:
            async with self._changing:
                await self._drop(wanted.uid)
        except OSError as error:
            return dra.NodeUnprepareResourceResponse(error=f"gpuslice: {error}")
        return dra.NodeUnprepareResourceResponse()

    async def run(self) -> None:
        """Drop lost claims each minute, until cancelled."""
        while True:
            await self.drop_lost()
            await asyncio.sleep(_LOST_S if self._parts.ledger.is_complete else _LOOK_S)

    async def drop_lost(self) -> None:
        """Drop claims that no container holds, and that the API server does not give this node. A
        kubelet that lost its checkpoint does not unprepare them."""
        if not self._parts.ledger.is_complete:
            return
        holds = self._parts.ledger.holds()
        held = {share for hold in holds for share in ledger.claimed(hold.key)}
        for claim in self._claims.prepared.values():
            if held.isdisjoint(share.name for share in claim.shares):
                await self._drop_if_lost(claim)

    async def _drop_if_lost(self, claim: Prepared) -> None:
        of = {"namespace": claim.namespace, "claim": claim.name}
        try:
            await self._read(claim.namespace, claim.name, claim.uid)
        except (Refused, KubeError) as error:
            # A server without this API answers 404 with another reason.
            if isinstance(error, KubeError) and error.reason != "NotFound":
                return
            try:
                async with self._changing:
                    if self._claims.prepared.get(claim.uid) == claim:
                        await self._drop(claim.uid)
                        _LOG.warning(Line("lost claim dropped", **of, problem=error))
            except OSError as failed:
                _LOG.warning(Line("lost claim not dropped", **of, problem=failed))

    async def _drop(self, uid: str) -> None:
        await asyncio.to_thread(self._store.drop, uid)
        self._claims.drop(uid)

    async def _look_again(self, claim: Prepared) -> None:
        """Read for which pods a prepared claim is reserved now. The kubelet asks to prepare it for
        the first pod only."""
        try:
            now = await self._read(claim.namespace, claim.name, claim.uid)
            async with self._changing:
                if self._claims.prepared.get(claim.uid) == claim and now.shares == claim.shares:
                    await self._put(now)
        except (Refused, KubeError, OSError) as error:
            of = {"namespace": claim.namespace, "claim": claim.name}
            _LOG.warning(Line("claim not read again", **of, problem=error))

    async def _prepared(self, wanted: dra.Claim) -> Prepared:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _WAIT_S
        while True:
            try:
                claim = await self._read(wanted.namespace, wanted.name, wanted.uid)
                async with self._changing:
                    self._check(claim)
                    await self._put(claim)
                return claim
            except Refused as error:
                if error.refusal.reason not in _WAITS or loop.time() >= end_s:
                    raise
            await asyncio.sleep(_LOOK_S)

    async def _read(self, namespace: str, name: str, uid: str) -> Prepared:
        raw = await self._kube.get(_CLAIMS.format(namespace, name))
        claim = device_claims.allocated(raw, self._parts.settings.node_name)
        if claim.uid != uid:
            problem = f"uid: invalid value {uid}: must be {claim.uid}"
            raise refused(Reason.CLAIM_INVALID, where=f"claim {name}", problem=problem)
        return claim

    async def _put(self, claim: Prepared) -> None:
        self._claims.put(claim)
        await asyncio.to_thread(self._store.put, claim)

    def _check(self, claim: Prepared) -> None:
        """Check that the claim can be served. Raises Refused."""
        claims, readiness = self._parts.claims, self._parts.readiness
        problem = readiness.session or readiness.claims or ""
        if claims.now is not FrontEnd.CLAIMS:
            problem = f"its front end is {claims.now} (label {names.LABEL_FRONT_END})"
        elif not self._parts.ledger.is_complete:
            problem = problem or "the container runtime has not listed its containers yet"
        if problem:
            raise refused(Reason.CLAIMS_NOT_SERVED, problem=problem)
        before = self._claims.prepared.get(claim.uid)
        if before is None or before.shares != claim.shares:
            gpus, holds = self._parts.inventory.seen, self._parts.ledger.holds()
            if refusal := self._claims.short(claim, gpus, holds):
                raise Refused(refusal)
