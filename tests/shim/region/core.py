"""A grant, its region, and processes controlled by a test (vgpu-core-test shell).

Uses the two files through contract alone, so that only the bytes connect C and Python.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuslice.contract import grant_file, names, region_file
from gpuslice.contract.layout import whole

GRANT_ID: Final = 0x1122334455667788
LIMIT_BYTES: Final = 1 << 30
ANSWER_DEADLINE_S: Final = 60.0
"""Far longer than any command, unless the process is stuck."""


def uuid(gpu: int) -> str:
    return f"GPU-{gpu:08x}-aaaa-bbbb-cccc-0123456789ab"


@dataclass(frozen=True)
class Slot:
    number: int
    state: int
    pid: int
    start_ticks: int
    generation: int
    bytes: tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """A directory as the node agent makes it, and the program to run over it."""

    directory: Path
    program: Path
    gpu_count: int = 1

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

    def write(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.grant.write_bytes(grant_file.fresh(self.grant_of(limit_bytes)))
        self.region.write_bytes(region_file.fresh(self.gpu_count, GRANT_ID))

    def set_limit(self, limit_bytes: int, writes: int = 2, grant_id: int = GRANT_ID) -> None:
        """Update the grant in place as the agent does; `writes` of 1: killed after the first."""
        update = grant_file.update(self.grant.read_bytes(), self.grant_of(limit_bytes, grant_id))
        for write in update[:writes]:
            patch(self.grant, write.offset, write.data)

    def tear(self, copy: int) -> None:
        offset = copy * grant_file.COPY_STRIDE + grant_file.HEAD.size + 40
        patch(self.grant, offset, b"torn")

    def use(self, gpu: int = 0) -> region_file.GpuUse:
        return region_file.uses(self.region.read_bytes())[gpu]

    def gpu_field(self, field: str) -> int:
        offset = region_file.Geometry(self.gpu_count).gpu_offset(0)
        return whole(region_file.GPU.unpack(self.region.read_bytes(), offset)[field])

    def slot_offset(self, number: int) -> int:
        geometry = region_file.Geometry(self.gpu_count)
        return geometry.slots_offset + number * geometry.slot_stride

    def slots(self) -> list[Slot]:
        """All slots ever taken, lowest first."""
        return list(self._slots(self.region.read_bytes()))

    def _slots(self, data: bytes) -> Iterator[Slot]:
        geometry = region_file.Geometry(self.gpu_count)
        for number in range(names.MAX_SLOTS):
            offset = self.slot_offset(number)
            slot = region_file.SLOT.unpack(data, offset)
            if not slot["generation"]:
                return
            of_gpus = range(offset + region_file.SLOT.size, offset + geometry.slot_stride)
            charges = [
                whole(region_file.SLOT_GPU.unpack(data, of_gpu)["bytes"])
                for of_gpu in of_gpus[:: region_file.SLOT_GPU.size][: self.gpu_count]
            ]
            named = {
                each: whole(slot[each]) for each in ("state", "pid", "start_ticks", "generation")
            }
            yield Slot(number, bytes=tuple(charges), **named)

    def forge(self, number: int, field: str, value: int) -> None:
        """Overwrite one 64-bit field of a slot."""
        offset = self.slot_offset(number) + region_file.SLOT.offset(field)
        patch(self.region, offset, struct.pack("<Q", value))

    def steps(self) -> Sequence[str]:
        return self.run("steps").split()

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [self.program, *arguments],
            env=self.env,
            text=True,
            capture_output=True,
            check=False,
            timeout=280,
        )
        assert done.returncode == 0, f"{arguments}: {done.returncode} {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def shell(self, *prefix: str) -> Iterator[Shell]:
        shell = Shell([*prefix, str(self.program), "shell"], self.env)
        try:
            yield shell
        finally:
            shell.kill()

    @contextmanager
    def holding(self, held_bytes: int, shared_by: int = 0) -> Iterator[Shell]:
        """A process that has reserved so much, and shares it by that key."""
        with self.shell() as shell:
            assert shell.ask(f"reserve 0 {held_bytes}") == "OK"
            assert not shared_by or shell.ask(f"share 0 {held_bytes} {shared_by}") != "0"
            yield shell

    def used_seen_afresh(self, gpu: int = 0) -> int:
        """Return the use as a newcomer reports it. A newcomer searches for exited processes, and
        takes no slot."""
        with self.shell() as newcomer:
            assert newcomer.ask("peek") == "OK"
            return int(newcomer.ask(f"used {gpu}"))


class Shell:
    """One process under test. Always killed with -9: exits are what is tested."""

    def __init__(self, command: Sequence[str], env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin and self._process.stdout
        self._in, self._out = self._process.stdin, self._process.stdout
        self._children: list[int] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: str) -> None:
        self._in.write(command.encode() + b"\n")
        self._in.flush()

    def ask(self, command: str) -> str:
        self.send(command)
        return self.answer(command)

    def answer(self, command: str) -> str:
        said = self._said(command)
        assert said is not None, f"stopped itself at {command!r}"
        return said

    def _said(self, command: str) -> str | None:
        """The answer; None: it stopped itself."""
        line, deadline = b"", time.monotonic() + ANSWER_DEADLINE_S
        while not line.endswith(b"\n"):
            if select.select([self._out], [], [], 0.002)[0]:
                got = os.read(self._out.fileno(), 1)
                assert got, f"ended at {command!r}"
                line += got
                continue
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                return None
            assert time.monotonic() < deadline, f"no answer to {command!r}: stuck"
        return line.decode().strip()

    def child(self, command: str) -> tuple[int, str]:
        """`fork ...` or `clone ...`: the child's pid (killed at the end) and its answer."""
        pid, _, said = self.ask(command).partition(" ")
        self._children.append(int(pid))
        return int(pid), said

    def stops_at(self, step: str, passage: int, script: Sequence[str]) -> bool:
        """Run the commands; True if the process stopped itself at that passage of the step."""
        assert self.ask(f"stop {step} {passage}") == "OK"
        for command in script:
            self.send(command)
            if self._said(command) is None:
                return True
        return False

    def resume(self, command: str) -> str:
        """Continue from where it stopped itself, to the answer of the command it was in."""
        os.kill(self.pid, signal.SIGCONT)
        return self.answer(command)

    def kill_alone(self) -> None:
        """kill -9 this process; its children continue."""
        self._process.kill()
        self._process.wait()

    def kill(self) -> None:
        for pid in self._children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._children.clear()
        self.kill_alone()
        for stream in (self._in, self._out):
            with suppress(BrokenPipeError):
                stream.close()


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), data, offset)
