"""dlsym and dlvsym under the library: the bare program's results, except for the driver's.

The oracle is the same program without the library. Where it got the driver's function it must now
get the wrapper, and in every other case exactly what it got before.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests import sanitizers

pytestmark = pytest.mark.sim

Look = Callable[[Sequence[str], Sequence[Path]], Sequence[str]]

_LOOKUPS = ("default", "next", "self", "vdefault")
_EVERY_WAY = [f"{way}:{name}" for way in _LOOKUPS for name in ("cuMemAlloc_v2", "cuInit")]


@pytest.fixture
def driver(build_dir: Path) -> Path:
    return build_dir / "lib" / "null" / "libcuda.so.1"


@pytest.fixture
def private(build_dir: Path) -> Path:
    return build_dir / "lib" / "tests" / "libprivate.so"


@pytest.fixture
def look(build_dir: Path) -> Look:
    def run(arguments: Sequence[str], preload: Sequence[Path] = ()) -> Sequence[str]:
        environment = {
            **os.environ,
            **sanitizers.environment(),
            "LD_PRELOAD": sanitizers.preload(*preload),
        }
        program = build_dir / "bin" / "vgpu-dlsym-test"
        done = subprocess.run(
            [program, *arguments], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    return run


def _as_ours(lines: Sequence[str]) -> Sequence[str]:
    return [line.replace("libcuda.so.1", "libvgpu.so") for line in lines]


# Each is a program's history; {driver} and {private} are libraries that it loads.
_HISTORIES = {
    "no driver": [],
    "driver loaded for all": ["global:{driver}", "handle:cuMemAlloc_v2", "vhandle:cuMemAlloc_v2"],
    "names of no one": [
        "global:{driver}",
        "handle:cuNoSuch",
        "default:cuNoSuch",
        "next:nvmlNoSuch",
    ],
    "private alone, local": ["open:{private}", "private-next", "private-default", "handle:cuInit"],
    "private alone, for all": ["global:{private}", "private-next", "private-default"],
    "private, then driver": [
        "global:{private}",
        "global:{driver}",
        "handle:cuMemAlloc_v2",
        "global:{private}",
        "handle:cuMemAlloc_v2",
        "call:cuMemAlloc_v2",
        "private-default",
    ],
    "driver, then private": [
        "global:{driver}",
        "global:{private}",
        "handle:cuMemAlloc_v2",
        "private-next",
        "private-next",
        "private-default",
    ],
}


@pytest.mark.parametrize("history", _HISTORIES.values(), ids=_HISTORIES.keys())
def test_row_32_answers_are_what_they_would_be_without_us(
    history: Sequence[str], look: Look, library: Path, driver: Path, private: Path
) -> None:
    loaded = [step.format(driver=driver, private=private) for step in history]
    arguments = [*loaded, *_EVERY_WAY, *_EVERY_WAY]  # again: nothing is used up by asking
    assert look(arguments, [library]) == _as_ours(look(arguments, []))


@pytest.mark.parametrize("first", ["library", "private"])
def test_row_32_a_second_interposer_keeps_its_place(
    first: str, look: Look, library: Path, driver: Path, private: Path
) -> None:
    """Before or behind the library: its next definition is the driver, in whose place the library
    is."""
    order = [library, private] if first == "library" else [private, library]
    arguments = [
        f"global:{driver}",
        f"open:{private}",
        "private-next",
        "private-next",
        "handle:cuMemAlloc_v2",
    ]
    assert look(arguments, order) == _as_ours(look(arguments, [private]))


def test_without_a_driver_nobody_gets_a_wrapper(look: Look, library: Path) -> None:
    answers = look([*_EVERY_WAY, "error"], [library])
    assert answers == [*(f"{way} null" for way in _EVERY_WAY), "error yes"]


def test_a_driver_loaded_for_one_library_alone_is_found_by_default(
    look: Look, library: Path, driver: Path
) -> None:
    """The library's export hides the caller's own scope, so the library answers for that scope."""
    answers = look([f"open:{driver}", "default:cuMemAlloc_v2", "error"], [library])
    assert answers == ["default:cuMemAlloc_v2 libvgpu.so", "error no"]


def test_a_private_library_meets_its_own_function_first(
    look: Look, library: Path, private: Path
) -> None:
    answers = look([f"open:{private}", "private-default", "call:cuMemAlloc_v2"], [library])
    assert answers == ["private-default libprivate.so", "call:cuMemAlloc_v2 4242"]


def test_a_driver_unloaded_and_loaded_again_is_followed(
    look: Look, library: Path, driver: Path, private: Path
) -> None:
    """What lay at the driver's old address must not be called: another library may be there now."""
    again = [f"open:{driver}", "call:cuMemAlloc_v2", "close"]
    answers = look([*again, f"open:{private}", *again, "default:cuInit", *again], [library])
    assert answers == _as_ours(
        look([*again, f"open:{private}", *again, "default:cuInit", *again], [])
    )


def test_names_that_are_not_hooked_are_untouched(look: Look, library: Path, driver: Path) -> None:
    arguments = [
        f"global:{driver}",
        "handle:cuCtxGetDevice",
        "default:malloc",
        "next:cuCtxGetDevice",
    ]
    assert look(arguments, [library]) == look(arguments, [])


def test_a_library_loaded_later_may_get_a_wrapper_in_place_of_nothing(
    look: Look, library: Path, driver: Path, private: Path
) -> None:
    """Here the library answers more than the real lookup; never the private function itself."""
    arguments = [f"global:{private}", f"global:{driver}", f"open:{private}", "private-next"]
    assert look(arguments, []) == ["private-next null"]
    assert look([*arguments, "private-next"], [library]) == ["private-next libvgpu.so"] * 2


def test_dlsym_itself_is_ours(look: Look, library: Path) -> None:
    assert look(["default:dlsym", "default:dlvsym"], [library]) == [
        "default:dlsym libvgpu.so",
        "default:dlvsym libvgpu.so",
    ]
