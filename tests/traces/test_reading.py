"""Traces are read and translated: what a file must be, and what its handles and addresses mean."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from tests.traces.names import Names
from tests.traces.plan import plan
from tests.traces.recordings import DATA
from tests.traces.script import Action, Argument, Kind, Result, Script
from tests.traces.signatures import signatures
from tests.traces.trace import Call, Mark, TraceError, read, words
from tests.traces.translate import Translator

MIB = 2**20


def written(directory: Path, *lines: str) -> Path:
    path = directory / "some.trace.gz"
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    return path


def test_lines_become_calls_and_marks(tmp_path: Path) -> None:
    recording = read(
        written(
            tmp_path,
            "# program: x",
            "# mark fill begin",
            "# start monotonic_us=7 pid=1",
            "# primary us=3 tid=1 device=2 context=0x10",
            "1 5 1 cuDeviceTotalMem_v2 0 a=& b=0 > a=4096",
        )
    )
    text = "cuDeviceTotalMem_v2 0 a=& b=0 > a=4096"
    assert list(recording.items) == [Mark(2, "fill begin"), Call(5, 1, 5, 1, text)]
    assert (recording.start_us, recording.memory_bytes) == (7, 4096)
    assert recording.primary == {0x10: 2}


@pytest.mark.parametrize(
    "line", ["1 5 cuInit 0", "cuInit 0 a=0", "1 5 1 cuInit 0 a", "", "1 5 1 cuInit 0 a=0 b"]
)
def test_another_line_is_an_error_that_names_it(tmp_path: Path, line: str) -> None:
    with pytest.raises(TraceError, match=r"some\.trace\.gz: line 2: not a call"):
        read(written(tmp_path, "# program: x", line))


def test_a_file_that_is_not_gzip_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "some.trace.gz"
    path.write_text("# program: x\n")
    with pytest.raises(TraceError, match=r"some\.trace\.gz"):
        read(path)


def test_a_call_is_taken_apart() -> None:
    parsed = words("cuMemAlloc_v2 0 a=& b=512 > a=0x7f00")
    assert (parsed.entry, parsed.result) == ("cuMemAlloc_v2", 0)
    assert (parsed.before, parsed.after) == ({"a": "&", "b": "512"}, {"a": "0x7f00"})
    assert words("cuMemAlloc_v2 2 a=& b=512 >").after == {}


def test_an_address_means_the_latest_memory_there() -> None:
    names = Names()
    names.make(0x1000, 10, 0x1000)
    assert names.find(0x1800) == (10, 0x800)
    assert names.find(0x2000) is None
    assert names.free(0x1000) == (10, 0)
    assert names.find(0x1000) == (10, 0), "until it is given out again"
    names.make(0x1000, 11, 0x100)
    assert names.find(0x1000) == (11, 0)
    assert names.find(0x1800) is None


def test_memory_over_smaller_memory_that_is_gone() -> None:
    names = Names()
    names.make(0x2000, 10, 0x100)
    names.free(0x2000)
    names.make(0x1000, 11, 0x8000)
    assert names.find(0x2000) == (11, 0x1000)


def test_an_address_that_is_given_out_again_before_its_free_is_written() -> None:
    """One thread frees it; another one gets it again, and its call returns first."""
    names = Names()
    names.make(0x1000, 10, 0x100)
    names.make(0x1000, 11, 0x100)
    assert names.find(0x1000) == (11, 0)
    assert names.free(0x1000) == (10, 0)
    assert names.free(0x1000) == (11, 0)


def test_each_call_of_the_recordings_is_replayed() -> None:
    """All but those of an entry that has no simulation."""
    skipped: Counter[str] = Counter()
    for path in DATA.glob("[a-c,e-h]-*"):
        (process,) = plan([read(path)], Path("image"))
        skipped += process.skipped
        assert sum(run.steps for run in process.script.runs) == len(process.calls)
    assert set(skipped) == {"cuLogsRegisterCallback"}


def test_a_kernel_has_a_name_of_its_own_in_its_module() -> None:
    script = Script()
    translator = Translator(script, {}, "image")
    lines = (
        "cuLibraryLoadData 0 a=& b=0x5 c=[] d=[] e=0 f=[] g=[] h=0 > a=0x60",
        "cuLibraryGetKernel 0 a=& b=0x60 c=@ > a=0x70",
        "cuLibraryGetKernel 0 a=& b=0x60 c=@ > a=0x71",
        "cuLibraryGetKernel 0 a=& b=0x60 c=@ > a=0x70",
    )
    operations = [
        translator.operations(Call(number, number, number, 1, text))[-1]
        for number, text in enumerate(lines, 1)
    ]
    assert translator.most_kernels == 2
    assert len(set(operations)) == 4, "the last one has a slot of its own"
    code = script.encode(b"")
    assert b"k0\0" in code and b"k1\0" in code and b"k2\0" not in code


def test_equal_calls_are_one_operation() -> None:
    script = Script()
    translator = Translator(script, {}, "image")
    text = "cuCtxGetDevice_v2 201 a=& b=0x0 >"
    first, second = (translator.operations(Call(n, n, n, 1, text)) for n in (1, 2))
    assert first == second
    number = script.entry("cuInit", "cuInit", 2000, False)
    zero, one = (script.operation(number, 0, [Argument(Kind.VALUE, n)]) for n in (0, 1))
    assert zero != one


def test_a_context_that_came_from_nowhere_is_the_primary_one() -> None:
    translator = Translator(Script(), {0x10: 1}, "image")
    operations = translator.operations(Call(1, 1, 1, 1, "cuCtxSetCurrent 0 a=0x10"))
    assert len(operations) == 3, "retained and released first"
    again = translator.operations(Call(2, 2, 2, 1, "cuCtxSetCurrent 0 a=0x10"))
    assert again == operations[-1:]


def test_a_call_that_returns_the_value_that_it_was_given() -> None:
    """The device's address of host memory: what it is asked about is not its own answer."""
    script = Script()
    translator = Translator(script, {}, "image")
    translator.operations(Call(1, 1, 1, 1, "cuMemHostAlloc 0 a=& b=64 c=2 > a=0x1000"))
    (asked,) = translator.operations(
        Call(2, 2, 2, 1, "cuMemHostGetDevicePointer_v2 0 a=& b=0x1000 c=0 > a=0x1000")
    )
    entry = signatures()["cuMemHostGetDevicePointer_v2"]
    again = script.operation(
        script.entry(entry.entry, entry.base, entry.since, False),
        0,
        [Argument(Kind.CELL), Argument(Kind.SLOT, 0, 0), Argument(Kind.VALUE)],
        [Result(Action.STORE, 0, 8, 0x1000, 1)],
    )
    assert asked == again


def test_a_struct_that_the_trace_does_not_have_skips_its_call() -> None:
    translator = Translator(Script(), {}, "image")
    text = "cuMemcpy2D_v2 0 a=@"
    assert translator.operations(Call(1, 1, 1, 1, text)) == ()
    assert translator.skipped == {"cuMemcpy2D_v2": 1}


def test_signatures_are_those_of_the_simulated_driver() -> None:
    known = signatures()
    tokens = {entry: [each.token for each in known[entry].parameters] for entry in known}
    assert tokens["cuMemAlloc_v2"] == [">x8", "u8"]
    assert tokens["cuLaunchKernel"] == ["x8", *["u4"] * 7, "x8", "x8", "x8"]
    assert tokens["cuMemCreate"] == [">x8", "u8", "h32", "u8"]
    assert tokens["cuMemFreeAsync_ptsz"] == tokens["cuMemFreeAsync"] == ["x8", "x8"]
    assert "cuIpcOpenMemHandle_v2" not in known, "a struct by value"
    assert all(len(each) <= 11 for each in tokens.values())
