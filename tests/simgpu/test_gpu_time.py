"""The time of a simulated GPU: contexts run in turn, and work is done after its duration."""

from __future__ import annotations

import array
import ast
import mmap
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from simgpu import board, load_output, wire
from simgpu.wire import Op, Request, Role
from tests.simgpu.host import Host
from tests.support import measured

pytestmark = pytest.mark.sim

MS = 10**6
HOUR_NS = 3600 * 10**9


class Load:
    """A process of cuda-load, which keeps the GPU busy with kernels of `duration_ns`."""

    def __init__(self, host: Host, duration_ns: int, seconds: float) -> None:
        self.child = subprocess.Popen(
            [host.build_dir / "bin/cuda-load", str(seconds), str(duration_ns / 1000)],
            env=host.env(),
            text=True,
            stdout=subprocess.PIPE,
        )
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == "ready\n"

    def done(self) -> int:
        """Wait until the process ends, and return the number of its kernels."""
        out, _ = self.child.communicate()
        assert self.child.returncode == 0
        ((launches, _),) = load_output.totals(out)
        return launches

    def kill(self) -> None:
        with self.child:
            self.child.kill()


@contextmanager
def loads(host: Host, *what: tuple[int, float]) -> Iterator[list[Load]]:
    started = [Load(host, *each) for each in what]
    try:
        yield started
    finally:
        for load in started:
            load.kill()


@pytest.mark.parametrize(
    "name",
    [
        "events_have_exact_instants",
        "streams_run_at_the_same_time",
        "a_stream_waits_for_an_event_of_another",
        "the_legacy_stream_waits_for_blocking_streams",
        "a_full_queue_makes_a_launch_wait",
        "a_kernel_takes_its_argument",
        "an_ended_contexts_work_is_dropped",
    ],
)
@measured
def test_gpu_time(driver_host: Host, name: str) -> None:
    driver_host.program("gpu_time", name)


@measured
def test_events_of_an_idle_stream_beside_another_process(driver_host: Host) -> None:
    with loads(driver_host, (MS, 60)):
        driver_host.program("gpu_time", "an_event_waits_for_its_contexts_time_slice")


@pytest.mark.parametrize("other_ns", [MS, 10_000], ids=["alike", "shorter"])
@measured
def test_two_processes_have_half_of_the_gpu_each(driver_host: Host, other_ns: int) -> None:
    """The durations of the processes' kernels may differ. NVML also reports 50 percent for each."""
    with loads(driver_host, (MS, 3), (other_ns, 3)) as (one, two):
        time.sleep(1.8)
        out = driver_host.python(
            "from pynvml import *\nnvmlInit()\nh = nvmlDeviceGetHandleByIndex(0)\n"
            "print(nvmlDeviceGetUtilizationRates(h).gpu,"
            " {s.pid: s.smUtil for s in nvmlDeviceGetProcessUtilization(h, 0)})"
        )
        whole, parts = out.split(maxsplit=1)
        assert int(whole) >= 98
        assert ast.literal_eval(parts) == {
            one.child.pid: pytest.approx(50, abs=4),
            two.child.pid: pytest.approx(50, abs=4),
        }
        # After one process stops, the other has the whole GPU for the rest of its time.
        assert one.done() * MS == pytest.approx(1.5e9, rel=0.1)
        assert two.done() * other_ns == pytest.approx(1.5e9, rel=0.1)


@measured
def test_short_kernels_are_done_at_the_gpus_pace(driver_host: Host) -> None:
    """The GPU does 200,000 kernels of 5 us a second, and a program launches them as fast."""
    with loads(driver_host, (5_000, 2)) as (one,):
        assert 200_000 < one.done() <= 400_000


@measured
def test_killed_processes_delay_no_other(driver_host: Host) -> None:
    """Many processes are killed while they submit work. Their work ends when they do."""
    choice = random.Random(1)
    with loads(driver_host, (MS, 6), (5_000, 6)) as (one, two):
        for _ in range(40):
            with loads(driver_host, (choice.choice([0, 10, HOUR_NS]), 60)) as (victim,):
                time.sleep(choice.random() / 20)
                victim.kill()
        assert one.done() > 1000
        assert two.done() > 200_000
    with loads(driver_host, (MS, 2)) as (alone,):
        assert alone.done() * MS == pytest.approx(2e9, rel=0.1)


def test_a_lock_whose_holder_exited_is_free(driver_host: Host) -> None:
    with loads(driver_host, (1000, 6)) as (one,):
        with socket.socket(socket.AF_UNIX) as holder:
            holder.connect(str(driver_host.socket(0)))
            holder.sendall(Request(Op.HELLO, (wire.PROTOCOL, Role.NVML, 0)).encode())
            head, shared_type = wire.STRUCTS["sim_gpu"], board.STRUCTS["sim_shared"]
            data, rights, _, _ = holder.recvmsg(wire.HEAD_BYTES + head.size, socket.CMSG_SPACE(4))
            (descriptor,) = array.array("i", rights[0][2])
            connection = head.unpack(data[wire.HEAD_BYTES :])[-2]
            shared = shared_type.from_buffer(mmap.mmap(descriptor, board.SHARED_BYTES))
            submitted = -1
            while sum(shared.channels[0].submitted) != submitted:
                # Repeat this, because a thread that had the lock may clear the value once.
                shared.board.lock = connection
                submitted = sum(shared.channels[0].submitted)
                time.sleep(0.2)
        assert one.done() > 0
