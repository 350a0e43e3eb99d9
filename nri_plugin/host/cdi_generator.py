"""Generates a CDI spec with nvidia-ctk for the GPUs that have no usable spec.

nvidia-ctk runs in a child under a deadline. Of its output only the missing GPUs' devices are kept,
named by UUID, in one file that is replaced atomically. Usually only this agent reads the file's
directory. Then only our adjustment can inject the GPU. With --whole-gpus the file is in a directory
that the runtime reads. The spec then has everything of a whole GPU, and the agent removes what a
share must not have when it injects the spec.
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
"""Options of nvidia-ctk, which writes to standard output. By default it names GPUs by index."""


@dataclass
class Generator:
    """Generates `directory`/FILE, with at most one attempt per `min_interval_s`.

    command: nvidia-ctk, after a prefix if this host needs one. deadline_s: of nvidia-ctk, which may
    delay the agent's start. now: a monotonic clock in seconds. `options`, `present`, `write`,
    `discard` and `withdraw_duplicates` block: run them in a worker thread.
    """

    command: Sequence[str]
    directory: Path
    environment: Mapping[str, str]
    root: DriverRoot = WITHOUT_MOUNT
    deadline_s: float = 20.0
    min_interval_s: float = 30.0
    now: Callable[[], float] = time.monotonic
    problem: str | None = None
    """Why the last attempt failed, or which GPUs it could not describe; None: it succeeded."""
    _generated_at: float | None = None

    def __post_init__(self) -> None:
        self.file = self.directory / FILE
        self._child = Child(self.command, self.environment, self.deadline_s, subject="nvidia-ctk")

    @property
    def due(self) -> bool:
        since_s = self._generated_at
        return since_s is None or self.now() - since_s >= self.min_interval_s

    def options(self, programs: Path) -> Sequence[str]:
        """Return the options that the driver root requires, besides OPTIONS. programs: directory
        into which DriverRoot.hook copies the hooks' program. Raises OSError."""
        below_mount = self.root.mount != Path("/")
        return self.root.options(self.root.hook(self.command, programs)) if below_mount else ()

    async def generate(
        self,
        uuids: Iterable[str],
        options: Sequence[str] = (),
        before: Sequence[Sequence[str]] = (),
    ) -> str | None:
        """Return the text of a spec for these GPUs, as far as nvidia-ctk describes them; None if it
        describes none. `problem` then lists what is missing.

        before: commands to run first. Only a failure of the last command is a problem.
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
        """Run the commands. Return why the last command failed; "" if it succeeded. Earlier
        failures do not count: a module may be loaded although modprobe does not find it."""
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
        """Return the UUIDs of the GPUs that our file describes. Raises OSError."""
        described = cdi_reader.load([self.file.parent]).devices.values()
        return [device.name for device in described if device.file == str(self.file)]

    def discard(self) -> bool:
        """Remove our file. Return whether there was one. Raises OSError."""
        try:
            self.file.unlink()
        except FileNotFoundError:
            return False
        _LOG.info(Line("generated CDI spec withdrawn", file=self.file))
        return True

    def withdraw_duplicates(self) -> bool:
        """Remove from our file each device that another file of its directory also defines, because
        neither definition is valid. Return whether there were any. Raises OSError."""
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
        """Replace our file (fsync, then rename) unless it has this content. Raises OSError."""
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
    """Return the text of a spec with these GPUs' devices from nvidia-ctk's output, and a problem
    that lists the missing GPUs; "": none. The spec's paths are the host's. Raises ChildError if all
    are missing."""
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
    """Yield the specs of the output. Newer releases of nvidia-ctk may print several."""
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
