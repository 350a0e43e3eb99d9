"""Generates CDI specs with nvidia-ctk for GPUs that have none, for this agent's use.

nvidia-ctk runs in a child under a deadline. Its output is parsed like any other spec; only the
missing GPUs' devices are kept, under their UUIDs, in one file that is replaced atomically. Only
this agent reads its own directory, so the GPU is injected only with our adjustment. Where pods hold
whole GPUs, the file must be in a directory that the runtime reads; what no share may have is cut at
injection.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.kube.log_lines import Line
from nri_plugin.child import Child
from nri_plugin.host import cdi_reader
from nri_plugin.host.driver_root import WITHOUT_MOUNT, DriverRoot
from nri_plugin.policy import nvidia
from nri_plugin.policy.refusals import ChildError

_LOG: Final = logging.getLogger(__name__)

FILE: Final = "gpuslice-generated.json"
OPTIONS: Final = ("cdi", "generate", "--format=json", "--device-name-strategy=uuid")
"""Without --output the spec goes to standard output. The default names devices by index."""


@dataclass
class Generator:
    """Creates `directory`/FILE; at most one attempt per `min_interval_s`.

    command: nvidia-ctk, with a prefix if this host needs one to run it. deadline_s: the agent waits
    for it at its start if a spec is missing. now: a monotonic clock in seconds. `options`,
    `present`, `write`, `discard` and `withdraw_duplicates` block: run them in a worker thread.
    """

    command: Sequence[str]
    directory: Path
    environment: Mapping[str, str]
    root: DriverRoot = WITHOUT_MOUNT
    deadline_s: float = 20.0
    min_interval_s: float = 30.0
    now: Callable[[], float] = time.monotonic
    problem: str | None = None
    """Why the last attempt failed, or which GPUs it omitted; None if neither."""
    _generated_at: float | None = None

    def __post_init__(self) -> None:
        self.file = self.directory / FILE
        self._child = Child(self.command, self.environment, self.deadline_s, subject="nvidia-ctk")

    @property
    def due(self) -> bool:
        since_s = self._generated_at
        return since_s is None or self.now() - since_s >= self.min_interval_s

    def options(self, programs: Path) -> Sequence[str]:
        """Return nvidia-ctk's further options. programs: directory for a copy of the program that
        runs the spec's hooks, if the host has none. Raises OSError."""
        below_mount = self.root.mount != Path("/")
        return self.root.options(self.root.hook(self.command, programs)) if below_mount else ()

    async def generate(
        self,
        uuids: Iterable[str],
        options: Sequence[str] = (),
        before: Sequence[Sequence[str]] = (),
    ) -> str | None:
        """Return a spec's text for those of these GPUs that nvidia-ctk describes; None: it
        describes none of them. `problem` lists what is missing.

        before: commands to run first; if the last one fails, a problem.
        """
        self._generated_at = self.now()
        unprepared = await self._prepare(before)
        wanted = sorted(uuids)
        try:
            reply = await self._run((*self.command, *OPTIONS, *options))
            text, problem = render(reply, wanted, self.root)
        except ChildError as error:
            text, problem = None, str(error)
        problem = "; ".join(filter(None, (problem, unprepared)))
        if problem and problem != self.problem:
            _LOG.warning(Line("no CDI spec generated", gpus=",".join(wanted), error=problem))
        self.problem = problem or None
        return text

    async def _prepare(self, commands: Sequence[Sequence[str]]) -> str:
        """Return why the last command failed; "": it did not. A module may be loaded although
        modprobe does not find it."""
        failed = ""
        for command in commands:
            try:
                await self._run(command)
                failed = ""
            except ChildError as error:
                failed = (
                    f"the control device nodes are missing, and {' '.join(self.command)} cannot"
                    f" create them ({error}): run {nvidia.CREATE_NODES} on the host"
                )
        return failed

    async def _run(self, command: Sequence[str]) -> bytes:
        self._child.command = command
        return await self._child.request()

    def present(self) -> Sequence[str]:
        """Return the GPUs that the file describes. Raises OSError."""
        described = cdi_reader.load([self.file.parent]).devices.values()
        return [device.name for device in described if device.file == str(self.file)]

    def discard(self) -> bool:
        """Remove the file; False: there was none. Raises OSError."""
        try:
            self.file.unlink()
        except FileNotFoundError:
            return False
        _LOG.info(Line("generated CDI spec withdrawn", file=self.file))
        return True

    def withdraw_duplicates(self) -> bool:
        """Remove from the file the devices that another file of its directory defines, too: neither
        definition is valid then. False: there are none. Raises OSError."""
        file, described = str(self.file), cdi_reader.load([self.file.parent], [names.CDI_KIND])
        twice = {
            device.name
            for device in described.devices.values()
            if device.also_in and file in (device.file, *device.also_in)
        }
        if not twice:
            return False
        spec = cdi_reader.document(self.file)
        left = [device for device in spec["devices"] if device["name"] not in twice]
        if not left:
            return self.discard()
        self.write(_text({**spec, "devices": left}))
        return True

    def write(self, text: str) -> None:
        """Write the file, with fsync and rename, unless it has this content. Raises OSError."""
        directory = self.file.parent
        with contextlib.suppress(FileNotFoundError):
            if self.file.read_text() == text:
                return
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=directory, prefix=".", delete=False) as file:
            try:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
                os.rename(file.name, self.file)
            except BaseException:
                os.unlink(file.name)
                raise
        _LOG.info(Line("CDI spec generated", file=self.file))


def render(reply: bytes, uuids: Sequence[str], root: DriverRoot = WITHOUT_MOUNT) -> tuple[str, str]:
    """Return the devices of these GPUs from nvidia-ctk's output, and which are missing; "": none.
    The paths are the host's. A GPU without a device does not affect the others. Raises ChildError
    if no GPU has one."""
    device_names: list[str] = []
    best: Mapping[str, Any] = {}
    kept: Mapping[str, Any] = {}
    for document in _documents(reply):
        listed = document.get("devices")
        if document.get("kind") != names.CDI_KIND or not isinstance(listed, list):
            continue
        dicts = (each for each in listed if isinstance(each, dict))
        devices = {each["name"]: each for each in dicts if isinstance(each.get("name"), str)}
        described = {uuid: devices[uuid] for uuid in uuids if uuid in devices}
        if len(described) > len(kept):
            best, kept = document, described
        device_names += devices
    missing = ", ".join(f"{names.CDI_KIND}={uuid}" for uuid in uuids if uuid not in kept)
    had = f"(it has: {', '.join(device_names) or 'none'})"
    problem = f"nvidia-ctk does not describe {missing} {had}" if missing else ""
    if not kept:
        raise ChildError(problem)
    spec = root.translate({**best, "devices": list(kept.values())})
    return _text(spec), problem


def _text(spec: Mapping[str, Any]) -> str:
    return json.dumps(spec, indent=1) + "\n"


def _documents(reply: bytes) -> Iterable[Mapping[str, Any]]:
    """Yield the specs: newer releases may print several."""
    text, at = reply.decode(errors="replace").strip(), 0
    while at < len(text):
        try:
            document, at = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise ChildError(f"nvidia-ctk printed no JSON: {error}") from error
        if isinstance(document, dict):
            yield document
        while at < len(text) and text[at].isspace():
            at += 1
