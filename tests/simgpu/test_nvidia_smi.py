"""nvidia-smi prints what NVIDIA's documentation describes."""

from __future__ import annotations

import os
import re

import pytest

from tests.simgpu.host import GIB, Host
from tests.support import run

pytestmark = pytest.mark.sim

UUIDS = [f"GPU-5e1f0a70-0000-4000-8000-{minor:012d}" for minor in (0, 1)]


def test_the_list(idle_host: Host) -> None:
    assert idle_host.smi("-L").stdout == "".join(
        f"GPU {index}: NVIDIA SimGPU-40GB (UUID: {uuid})\n" for index, uuid in enumerate(UUIDS)
    )


def test_the_table(driver_host: Host) -> None:
    child, _ = driver_host.peer(f"alloc={10 * GIB}")
    done = driver_host.smi()
    assert done.returncode == 0
    stamp, *table = done.stdout.splitlines()
    assert re.fullmatch(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}", stamp)
    assert {len(line) for line in table if line} == {91}
    text = "\n".join(table)
    assert "Driver Version: 580.65.06      CUDA Version: 13.0     |" in text
    assert "|   0  NVIDIA SimGPU-40GB             On  |   00000000:17:00.0 Off |" in text
    assert "| N/A   34C    P0             55W /  400W |   10240MiB /  40960MiB |      0%" in text
    assert "|       0MiB /  40960MiB |" in text
    (row,) = [line for line in table if f" {child.pid} " in line]
    assert row.endswith("10240MiB |")
    assert "No running processes" not in text


def test_queries(driver_host: Host) -> None:
    driver_host.peer(f"alloc={GIB}")
    for fields, form, expected in (
        (
            "index,uuid,name",
            "csv",
            "index, uuid, name\n"
            f"0, {UUIDS[0]}, NVIDIA SimGPU-40GB\n1, {UUIDS[1]}, NVIDIA SimGPU-40GB\n",
        ),
        (
            "memory.total,memory.used,memory.free",
            "csv",
            "memory.total [MiB], memory.used [MiB], memory.free [MiB]\n"
            "40960 MiB, 1024 MiB, 39936 MiB\n40960 MiB, 0 MiB, 40960 MiB\n",
        ),
        ("memory.used, index", "csv,nounits", "memory.used [MiB], index\n1024, 0\n0, 1\n"),
        ("driver_version,utilization.gpu", "csv, noheader", "580.65.06, 0 %\n" * 2),
    ):
        done = driver_host.smi(f"--query-gpu={fields}", f"--format={form}")
        assert (done.returncode, done.stdout) == (0, expected)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--colour"], 2, 'Invalid combination of input arguments: "--colour"'),
        (["--query-gpu=index,speed", "--format=csv"], 2, 'Field "speed" is not a valid field'),
        (["--query-gpu=index"], 2, '"--format=" switch is missing'),
        (["--query-gpu=index", "--format=xml"], 2, 'Invalid value of "--format=": "xml"'),
    ],
)
def test_refusals_name_what_is_wrong(
    idle_host: Host, arguments: list[str], status: int, message: str
) -> None:
    done = idle_host.smi(*arguments)
    assert done.returncode == status
    assert message in done.stdout


def test_no_driver(idle_host: Host) -> None:
    program = idle_host.build_dir / "bin" / "nvidia-smi"
    bare = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    for environ, status, message in (
        ({**idle_host.env(), "SIMGPU_DIR": "/absent"}, 9, "couldn't communicate with the NVIDIA"),
        (bare, 12, "couldn't find libnvidia-ml.so"),
    ):
        done = run(program, env=environ)
        assert done.returncode == status
        assert message in done.stdout


def test_a_lost_gpu(driver_host: Host) -> None:
    driver_host.fault("lose")
    done = driver_host.smi("-L")
    assert done.returncode == 15
    assert "GPU0: GPU is lost" in done.stdout
