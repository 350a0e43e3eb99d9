"""Traces are read and translated: the file format, and the meaning of handles and addresses."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from traces.names import Names
from traces.plan import plan
from traces.recordings import DATA
from traces.script import Script
from traces.trace import Call, TraceError, read
from traces.translate import Translator


def written(directory: Path, *lines: str) -> Path:
    path = directory / "some.trace.gz"
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    return path


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


def test_a_struct_that_the_trace_does_not_have_skips_its_call() -> None:
    translator = Translator(Script(), {}, "image")
    text = "cuArrayCreate_v2 0 a=& b=@"
    assert translator.operations(Call(1, 1, 1, 1, text)) == ()
    assert translator.skipped == {"cuArrayCreate_v2": 1}
