"""pauses.py ends a process where the library would pause, and at no other place.

Otherwise tests/shim/region/test_killpoints.py, which relies on pauses.py, might pass by mistake.
"""

from __future__ import annotations

import signal
import sys

import pytest

from tests.support import run


@pytest.mark.parametrize(
    ("pause", "status"),
    [
        ("import time; time.sleep(0.001)", 0),
        ("import ctypes; ctypes.CDLL(None).syscall(pauses._NANOSLEEP, None, None)", -signal.SIGSYS),
    ],
)
def test_a_pause_of_the_librarys_kind_ends_it(pause: str, status: int) -> None:
    program = f"from tests import pauses; pauses.forbid(); {pause}"
    assert run(sys.executable, "-c", program).returncode == status
