"""A grant, its region, and processes controlled by a test (vgpu-core-test shell).

Reads and writes both files only through gpuslice.contract, so C and Python share only their bytes.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpuslice.contract import grant_file, names, region_file
from gpuslice.contract.layout import whole
from tests.talking import Talk

GRANT_ID: Final = 0x1122334455667788
LIMIT_BYTES: Final = 1 << 30


def uuid(gpu: int) -> str:
    return f"GPU-{gpu:08x}-aaaa-bbbb-cccc-0123456789ab"


@dataclass(frozen=True)
class Slot:
    """A slot of the region. bytes: the charge on the first GPU."""

    number: int
    state: int
    pid: int
    start_ticks: int
    bytes: int


@dataclass(frozen=True)
class Box:
    """A container's directory as the node agent makes it, and the path of vgpu-core-test."""

    directory: Path
    program: Path
    gpu_count: int = 1

    def of_gpus(self, gpu_count: int) -> Box:
        """Replace the directory's files by new files for that many GPUs, and return the box."""
        box = replace(self, gpu_count=gpu_count)
        box.write()
        return box

    @property
    def grant(self) -> Path:
        return self.directory / names.FILE_GRANT

    @property
    def region(self) -> Path:
        return self.directory / names.FILE_REGION

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, names.ENV_DIR: str(self.directory)}

    def grant_of(self, limit_bytes: int, grant_id: int = GRANT_ID) -> grant_file.Grant:
        gpus = [grant_file.Gpu(uuid(gpu), limit_bytes, 50, gpu) for gpu in range(self.gpu_count)]
        return grant_file.Grant(grant_id, gpus)

    def write(self) -> None:
        self.grant.write_bytes(grant_file.fresh(self.grant_of(LIMIT_BYTES)))
        self.region.write_bytes(region_file.fresh(self.gpu_count, GRANT_ID))

    def set_limit(self, limit_bytes: int, writes: int = 2, grant_id: int = GRANT_ID) -> None:
        """Update the grant's file. If `writes` is 1, omit the second of the two writes."""
        update = grant_file.update(self.grant.read_bytes(), self.grant_of(limit_bytes, grant_id))
        for write in update[:writes]:
            patch(self.grant, write.offset, write.data)

    def tear(self, copy: int) -> None:
        offset = copy * grant_file.COPY_STRIDE + grant_file.HEAD.size + 40
        patch(self.grant, offset, b"torn")

    def use(self) -> region_file.GpuUse:
        return region_file.uses(self.region.read_bytes())[0]

    def used(self, gpu: int = 0) -> int:
        return region_file.uses(self.region.read_bytes())[gpu].used_bytes

    def slot_offset(self, number: int) -> int:
        geometry = region_file.Geometry(self.gpu_count)
        return geometry.slots_offset + number * geometry.slot_stride

    def slots(self) -> list[Slot]:
        """Return all slots that were ever taken, lowest first."""
        data, found = self.region.read_bytes(), []
        for number in range(names.MAX_SLOTS):
            offset = self.slot_offset(number)
            slot = region_file.SLOT.unpack(data, offset)
            if not slot["generation"]:
                break
            charged = region_file.SLOT_GPU.unpack(data, offset + region_file.SLOT.size)["bytes"]
            named = {name: whole(slot[name]) for name in ("state", "pid", "start_ticks")}
            found.append(Slot(number, bytes=whole(charged), **named))
        return found

    def forge(self, number: int, field: str, value: int) -> None:
        """Overwrite one 64-bit field of a slot."""
        offset = self.slot_offset(number) + region_file.SLOT.offset(field)
        patch(self.region, offset, struct.pack("<Q", value))

    def run(self, *arguments: str) -> Sequence[str]:
        """Run the program, and return the words that it prints."""
        done = subprocess.run(
            [self.program, *arguments], env=self.env, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, f"{arguments}: {done.returncode} {done.stdout}{done.stderr}"
        return done.stdout.split()

    @contextmanager
    def shell(self, *prefix: str) -> Iterator[Shell]:
        with shell([*prefix, self.program, "shell"], self.env) as started:
            yield started

    @contextmanager
    def holding(self, held_bytes: int, shared_by: int = 0) -> Iterator[Shell]:
        """Start a process that reserves the bytes and, if `shared_by` is set, shares them by it."""
        with self.shell() as holder:
            assert holder.ask(f"reserve 0 {held_bytes}") == "OK"
            assert not shared_by or holder.ask(f"share 0 {held_bytes} {shared_by}") != "0"
            yield holder

    def used_seen_afresh(self, gpu: int = 0) -> int:
        """Return the use that a new process reports, after it has searched for exited processes. It
        takes no slot."""
        with self.shell() as newcomer:
            assert newcomer.ask("peek") == "OK"
            return int(newcomer.ask(f"used {gpu}"))

    def used_without(self, *killed: Shell) -> int:
        """Kill these processes, and return the use that a new process then reports."""
        for each in killed:
            each.kill()
        return self.used_seen_afresh()


class Shell(Talk):
    """A process under test. It is always killed with -9, because these tests are about exits."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(process)
        self.children: list[int] = []

    def child(self, command: str) -> str:
        """Execute `fork ...` or `clone ...`. Return the child's answer. `shell` kills the child."""
        pid, _, said = self.ask(command).partition(" ")
        self.children.append(int(pid))
        return said

    def stops_at(self, step: str, passage: int, *script: str) -> bool:
        """Run the commands. Return whether the process stopped at the passage of the step."""
        assert self.ask(f"stop {step} {passage}") == "OK"
        return any(self.stops(command) for command in script)

    def resume(self) -> str:
        """Continue after a stop. Return the answer to the interrupted command."""
        os.kill(self.pid, signal.SIGCONT)
        return self.answer()


@contextmanager
def shell(command: Sequence[str | Path], env: Mapping[str, str]) -> Iterator[Shell]:
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        started = Shell(process)
        try:
            yield started
        finally:
            for pid in started.children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.kill()
            process.communicate()


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), data, offset)
