"""Helpers of tests in several areas: the checkout, sizes, waiting, measurements, tables, imports,
clocks."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import functools
import importlib
import pkgutil
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, ParamSpec

ROOT: Final = Path(__file__).resolve().parent.parent
MIB: Final = 1 << 20
GIB: Final = 1 << 30
_DEADLINE_S: Final = 120.0
_POLL_S: Final = 0.02
_LONGEST_POLL_S: Final = 0.5
_TRIES: Final = 3
_RUN: Final[dict[str, Any]] = {"cwd": ROOT, "text": True, "capture_output": True, "check": False}
_P = ParamSpec("_P")


def until(condition: Callable[[], object], what: str, within_s: float = _DEADLINE_S) -> None:
    """Poll until the condition holds. The pauses are longer if the condition's evaluation takes
    long, for example because it runs kubectl."""
    began_s = asked_s = time.monotonic()
    while not condition():
        now_s = time.monotonic()
        assert now_s < began_s + within_s, f"not within {within_s:.0f} s: {what}"
        time.sleep(min(max(_POLL_S, 4 * (now_s - asked_s)), _LONGEST_POLL_S))
        asked_s = time.monotonic()


async def until_async(condition: Callable[[], object]) -> None:
    """Poll in an event loop until the condition holds."""
    async with asyncio.timeout(_DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S / 2)


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in the checkout by default. options: those of subprocess.run."""
    return subprocess.run([*map(str, command)], **{**_RUN, **options})


def table_below(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the table's rows below a heading in a document."""
    lines = text[text.index(f"| {heading} |") :].splitlines()
    rows = []
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def defined_tests() -> dict[str, Path]:
    """Return the file of each test, by the test's name."""
    return {
        node.name: path
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def assert_metrics(text: str, metrics: Any) -> None:
    """Check that a document's table of metrics has the names, types and labels of the code."""
    suffixes = {"counter": "_total", "info": "_info"}
    known = {
        family.name + suffixes.get(family.type, ""): family.type
        for family in metrics.registry.collect()
        if not family.name.startswith("process_")
    }
    written = {row[0].strip("`"): row for row in table_below(text, "metric")}
    assert {name: row[1] for name, row in written.items()} == known
    labelled = {
        metric._name: metric._labelnames
        for metric in vars(metrics).values()
        if hasattr(metric, "_labelnames")
    }
    for name, row in written.items():
        of_info = ("name", "version", "nri")
        expected = of_info if row[1] == "info" else labelled[name.removesuffix("_total")]
        assert tuple(re.findall(r"`(\w+)`", row[2])) == expected, name


def imported(source: bytes) -> set[str]:
    """Return the top-level names of all modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {each.name.split(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


_DISTRIBUTIONS: Final = {
    "_cffi_backend": "cffi",
    "google": "protobuf",
    "grpc": "grpcio",
    "prometheus_client": "prometheus-client",
    "pynvml": "nvidia-ml-py",
    "yaml": "PyYAML",
}
"""The distributions' names, by module, where the two names differ."""


def distributions(modules: Iterable[str]) -> set[str]:
    """Return the distributions of these modules, without Python's own modules."""
    foreign = {*modules} - sys.stdlib_module_names
    return {_DISTRIBUTIONS.get(name, name) for name in foreign}


def measured(test: Callable[_P, None]) -> Callable[_P, None]:
    """Try a test up to three times, because it measures in real time. A stall of the machine
    affects one try, but an error of the code affects all."""

    @functools.wraps(test)
    def tried(*args: _P.args, **kwargs: _P.kwargs) -> None:
        for _ in range(_TRIES - 1):
            with contextlib.suppress(AssertionError):
                return test(*args, **kwargs)
        return test(*args, **kwargs)

    return tried


def jump(seconds: float) -> None:
    """Advance the running event loop's clock. Timers of the skipped time are due at once."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    loop.time = lambda: clock() + seconds  # type: ignore[method-assign]


class Clock:
    """A clock that a test sets."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def dataclasses_of(package: ModuleType) -> Sequence[Any]:
    """Return the dataclasses that the package's modules define."""
    names = (each.name for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    classes = {
        each for module in modules for each in vars(module).values() if isinstance(each, type)
    }
    own = {each for each in classes if each.__module__.startswith(package.__name__)}
    return [each for each in own if dataclasses.is_dataclass(each)]
