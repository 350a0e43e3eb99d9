"""How traces are read, and how their handles and addresses are translated for a replay."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from traces.plan import plan
from traces.trace import DATA, TraceError, read


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


def test_each_call_of_the_recordings_is_replayed() -> None:
    """A replay leaves out only calls of functions that the simulated driver lacks."""
    skipped: Counter[str] = Counter()
    for path in DATA.glob("[a-c,e-h]-*"):
        (process,) = plan([read(path)], Path("image"))
        skipped += process.skipped
        assert sum(run.steps for run in process.script.runs) == len(process.calls)
    assert set(skipped) == {"cuLogsRegisterCallback"}
