"""Limits from environment variables, without hooks: the parser, and charges of killed processes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.contract import names
from tests.conftest import build
from tests.shim.region.core import Shell, shell

pytestmark = pytest.mark.sim

_OK, _UNMANAGED, _MEMORY, _CORE, _GPU = 0, 1, 10, 11, 13
_NO_LIMIT = 2**64 - 1
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}

_NUMBERS = st.one_of(
    st.sampled_from(["0", "1", "1024", "00", "007", "100", "101", "9223372036854775807"]),
    st.sampled_from(["8589934591", "8589934592", "9223372036854775808", "99999999999999999999"]),
    st.integers(0, 2**64).map(str),
    st.text("0123456789kKmMgG.x-+ eit", max_size=6),
)
_VALUES = st.builds("{}{}".format, _NUMBERS, st.sampled_from(["", "k", "M", "g", "G", "Gi", "b"]))
_SUFFIXES = st.sampled_from(
    ["", "", "_0", "_1", "_31", "_32", "_", "_x", "_01", "_1x", "_4294967296", "S", "_1_1"]
)
_GPU_UUID = "GPU-5e1f0a70-0000-4000-8000-0000000000aa"
_MIG_UUID = "MIG-11111111-2222-4333-8444-555555555555"
_UUIDS = st.sampled_from([_GPU_UUID, _MIG_UUID, "GPU-5e1f0a70", "all", "0", ""])
_VARIABLES = st.one_of(
    st.tuples(st.builds("CUDA_DEVICE_MEMORY_LIMIT{}".format, _SUFFIXES), _VALUES),
    st.tuples(st.builds("CUDA_DEVICE_SM_LIMIT{}".format, _SUFFIXES), _VALUES),
    st.tuples(st.just("NVIDIA_VISIBLE_DEVICES"), st.lists(_UUIDS, max_size=4).map(",".join)),
    st.tuples(st.sampled_from(["PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE"]), _VALUES),
)


def _bytes(text: str) -> int | None:
    match = re.fullmatch("([0-9]+)([kmg]?)", text, re.IGNORECASE | re.ASCII)
    amount = int(match[1]) * _UNITS[match[2].lower()] if match else 2**63
    return None if amount >= 2**63 else amount or _NO_LIMIT


def _percent(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]+", text, re.ASCII) and int(text) <= 100 else None


def _family(environment: dict[str, str], name: str, none: int) -> list[int] | str:
    """Return the limits of all 32 GPUs, or the refusal of the first invalid variable."""
    read, refusal = (_bytes, _MEMORY) if "MEMORY" in name else (_percent, _CORE)
    common, own = none, {}
    for variable, text in environment.items():
        if variable != name and not variable.startswith(name + "_"):
            continue
        value = read(text)
        number = variable.removeprefix(name).removeprefix("_")
        plain = re.fullmatch("0|[1-9][0-9]*", number, re.ASCII) and int(number) < 32
        if variable != name and not plain:
            return f"{_GPU} environment {variable}: invalid name"
        if value is None:
            return f'{refusal} environment {variable}: invalid value "{text}"'
        if variable == name:
            common = value
        else:
            own[int(number)] = value
    return [own.get(gpu, common) for gpu in range(names.ENVIRONMENT_MAX_GPUS)]


def _listed(text: str) -> list[str]:
    each = text.removesuffix(",").split(",") if text else []
    if not all(re.fullmatch("(GPU|MIG)-[0-9a-f-]{36}", name) for name in each):
        return []
    return [name[4:].replace("-", "") for name in each]


def _oracle(environment: dict[str, str]) -> str:
    memory = _family(environment, names.ENV_MEMORY_LIMIT, _NO_LIMIT)
    core = _family(environment, names.ENV_CORE_LIMIT, 0)
    if isinstance(memory, str) or isinstance(core, str):
        return memory if isinstance(memory, str) else str(core)
    unmanaged = set(memory) == {_NO_LIMIT} and {percent % 100 for percent in core} == {0}
    listed = [] if unmanaged else _listed(environment.get(names.ENV_VISIBLE_DEVICES, ""))
    words = [word for pair in zip(memory, core, strict=True) for word in pair]
    return " ".join(map(str, [_UNMANAGED if unmanaged else _OK, *words, len(listed), *listed]))


@pytest.fixture(scope="module", params=["dev", "asan"])
def parser(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    program = build(request.param) / "bin" / "vgpu-environment-test"
    with subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0


@settings(max_examples=2000, deadline=None)
@given(environment=st.lists(_VARIABLES, max_size=6).map(dict))
def test_the_parser_agrees_with_the_oracle(
    parser: subprocess.Popen[str], environment: dict[str, str]
) -> None:
    assert parser.stdin is not None and parser.stdout is not None
    parser.stdin.write("\x1f".join(f"{name}={text}" for name, text in environment.items()) + "\n")
    parser.stdin.flush()
    said = parser.stdout.readline().rstrip("\n")
    if len(said.split()) > 2 and '"' not in said:
        assert said == _oracle(environment)
    else:  # a long value is cut in the message
        assert said.split("...")[0] in _oracle(environment)


Start = Callable[..., AbstractContextManager[Shell]]


@pytest.fixture(params=["dev", "asan", "tsan"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:

    def started(limit_bytes: int = 1000) -> AbstractContextManager[Shell]:
        program = build(request.param) / "bin" / "vgpu-core-test"
        cache, limit = str(tmp_path / "cache"), str(limit_bytes)
        env = {names.ENV_SHARED_CACHE: cache, names.ENV_MEMORY_LIMIT: limit}
        return shell([program, "shell"], env)

    return started


def _gpu(process: Shell, number: int) -> int:
    """Return the index of the GPU whose UUID is this number."""
    return int(process.ask(f"gpu {number:032x}"))


def test_a_killed_processs_charge_is_refunded_and_a_child_begins_with_none(start: Start) -> None:
    with start() as survivor:
        with start() as victim:
            for process in (survivor, victim):
                assert process.ask("attach") == "OK"
                assert _gpu(process, 1) == 0
            assert victim.ask("reserve 0 700") == "OK"
            assert survivor.ask("reserve 0 301") == "OVER_LIMIT"
            assert victim.child("fork reserve 0 301") == "OVER_LIMIT"
            assert victim.child("clone reserve 0 300") == "OK"
        assert survivor.ask("reserve 0 700") == "OK"


def test_gpus_keep_their_places_and_the_last_has_none(start: Start) -> None:
    places = range(names.ENVIRONMENT_MAX_GPUS)
    with start() as first, start() as second:
        assert {first.ask("attach"), second.ask("attach")} == {"OK"}
        assert [_gpu(first, place + 1) for place in places] == [*places]
        assert _gpu(first, 99) == -1
        assert _gpu(second, 32) == 31
        assert [each.ask("reserve 31 600") for each in (first, second)] == ["OK", "OVER_LIMIT"]
        assert _gpu(second, 31) == 30
        assert second.ask("reserve 30 1000") == "OK", "its neighbour has its own count"


def test_a_read_only_process_makes_no_limit_and_takes_no_slot(start: Start) -> None:
    with start() as looking, start(500) as using:
        for process, look, limit in ((looking, "peek", "1000"), (using, "attach", "500")):
            assert process.ask(look) == "OK"
            assert _gpu(process, 1) == 0
            assert process.ask("limit 0") == limit
        assert using.ask("reserve 0 501") == "OVER_LIMIT"
