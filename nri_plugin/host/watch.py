"""Checks the node every few seconds, independently of requests, and repairs what it can.

Without the watch, a driver or library that is installed later, or a missing CDI spec, would be
noticed only when a container is refused. Updates readiness.py. Runs on the event loop; the node's
worker and children do blocking work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuslice.kube.log_lines import Line
from nri_plugin.host.node import Node
from nri_plugin.metrics import Metrics
from nri_plugin.policy.ledger import Ledger
from nri_plugin.policy.model import Gpu, Paths, Specs
from nri_plugin.policy.refusals import Refused, StoreError
from nri_plugin.readiness import BEAT_S, Readiness

_LOG: Final = logging.getLogger(__name__)

LOOK_EVERY_BEATS: Final = 5
_LATE: Final = (
    "this node's files (directories of the host, library, CDI specs) could not be read or written"
    " in time"
)
SILENT_S: Final = 3.0
"""Maximum wait for NVML. After it, the last known GPUs are used."""


@dataclass(frozen=True, slots=True)
class NodeProblems:
    """Problems as text. lacks: why the whole node cannot share GPUs. unusable: by UUID, why one GPU
    cannot be shared."""

    lacks: Sequence[str] = ()
    unusable: Mapping[str, str] = field(default_factory=dict)


async def watch(node: Node, ledger: Ledger, readiness: Readiness, metrics: Metrics) -> None:
    """Check until cancelled. Log when the agent becomes ready, and when it is no longer ready."""
    beats, queried_runtime, shown = 0, node.runtime, None
    inspecting: asyncio.Task[NodeProblems] | None = None
    logged: Sequence[str] | None = None
    try:
        while True:
            readiness.beat()
            readiness.device_plugin = node.conflict
            readiness.limits = node.limits
            metrics.with_grant.set(len(ledger.holds()))
            if inspecting is not None and inspecting.done():
                report(inspecting.result(), readiness)
                inspecting = None
            due = beats % LOOK_EVERY_BEATS == 0 or queried_runtime is not node.runtime
            if inspecting is None and due:
                queried_runtime = node.runtime
                inspecting = asyncio.create_task(inspect(node), name="inspect the node")
            if node.library != shown:
                shown = node.library
                _show(shown, metrics)
            metrics.gpus.set(len(node.inventory.gpus))
            metrics.unusable.set(len(readiness.unusable))
            problems = readiness.problems
            metrics.ready.set(not problems)
            if problems != logged:
                _log(problems)
                logged = problems
            beats += 1
            await asyncio.sleep(BEAT_S)
    finally:
        if inspecting is not None:
            inspecting.cancel()


def report(problems: NodeProblems, readiness: Readiness) -> None:
    for uuid, problem in problems.unusable.items():
        if readiness.unusable.get(uuid) != problem:
            _LOG.error(Line("GPU cannot be injected into containers", uuid=uuid, problem=problem))
    readiness.node, readiness.unusable = problems.lacks, problems.unusable


async def inspect(node: Node) -> NodeProblems:
    """Repair what can be repaired, then return the remaining problems."""
    try:
        missing = await node.work(node.find_directories)
    except TimeoutError:
        return NodeProblems([_LATE])
    inventory = node.inventory
    if inventory.problem is not None or inventory.nvml.silent or not inventory.gpus:
        await inventory.refresh(SILENT_S)
    with suppress(TimeoutError):
        await node.look_for_plugins()
    problems = await _inspect(node)
    unusable = {uuid: node.as_on_host(text) for uuid, text in problems.unusable.items()}
    return NodeProblems([*missing, *map(node.as_on_host, problems.lacks)], unusable)


async def _inspect(node: Node) -> NodeProblems:
    inventory, silent = node.inventory, []
    if inventory.problem is not None:
        if not inventory.gpus:
            return NodeProblems([f"this node's GPUs are not known: {inventory.problem}"])
        silent = [f"the GPUs are those that NVML reported last: {inventory.problem}"]
    if not inventory.gpus:
        failures = [f"{gpu.uuid}: {gpu.problem}" for gpu in inventory.seen if gpu.problem]
        failures += inventory.unnamed
        return NodeProblems(
            [f"no GPU of this node can be shared: {'; '.join(failures)}"]
            if failures
            else ["the driver lists no GPU on this node"]
        )
    try:
        if not silent:
            await node.renew_specs()
        specs, paths = await node.work(node.inspect_host)
        devices = [specs.devices.get(gpu.uuid) for gpu in node.gpus]
        # Another program may since have defined the GPU's device in the same directory. Then
        # neither definition is valid, so ours is removed.
        if any(device and device.also_in for device in devices) and await node.work(
            node.generator.withdraw_duplicates
        ):
            specs, paths = await node.work(node.inspect_host)
        wanted = node.to_generate(specs)
        if wanted and not silent and await node.generate_specs(wanted):
            _log_replaced(wanted, specs, node.generator.file)
            specs, paths = await node.work(node.inspect_host)
    except TimeoutError:
        return NodeProblems([_LATE])
    except Refused as error:
        return NodeProblems([str(error)])
    except (OSError, StoreError) as error:
        return NodeProblems([f"no CDI spec can be written: {error}"])
    judged = judge(node.gpus, specs, paths, node.generator.problem)
    unprotected = [each for each in (node.unprotected, node.selinux, node.limits.refusal) if each]
    return NodeProblems([*silent, *unprotected, *judged.lacks], judged.unusable)


def judge(
    gpus: Sequence[Gpu], specs: Specs, paths: Paths, generator_problem: str | None = None
) -> NodeProblems:
    """Return the problems of the library and of these GPUs' CDI devices. Pure."""
    lacks = []
    if paths.library is None:
        lacks.append(f"the library is missing: {paths.library_problem}")
    hints = [f"unreadable: {problem}" for problem in specs.problems]
    hints += [f"none was generated: {generator_problem}"] if generator_problem else []
    hint = f" ({'; '.join(hints)})" if hints else ""
    instead = f" (instead: {generator_problem})" if generator_problem else ""
    unusable = {}
    for gpu in gpus:
        device = specs.devices.get(gpu.uuid)
        if device is None:
            unusable[gpu.uuid] = f"{gpu.uuid} has no CDI device{hint}"
        elif device.problem is not None:
            problem = f"{device.problem}{instead}"
            unusable[gpu.uuid] = f"CDI device of {gpu.uuid} in {device.file}: {problem}"
    if len(unusable) == len(gpus):
        lacks += unusable.values()
    return NodeProblems(lacks, unusable)


def _log_replaced(generated: Iterable[str], before: Specs, ours: Path) -> None:
    """Log each unusable device of another program's spec that a generated device replaces."""
    for uuid in sorted(generated):
        device = before.devices.get(uuid)
        if device is not None and device.problem is not None and device.file != str(ours):
            problem = f"CDI device in {device.file}: {device.problem}"
            _LOG.warning(Line("CDI spec replaced", uuid=uuid, by=ours, problem=problem))


def _show(library: Path | None, metrics: Metrics) -> None:
    metrics.library.clear()
    if library is not None:
        metrics.library.labels(library.parent.name).set(1)


def _log(problems: Sequence[str]) -> None:
    if problems:
        _LOG.warning(Line("not ready", why="; ".join(problems)))
    else:
        _LOG.info(Line("ready"))
