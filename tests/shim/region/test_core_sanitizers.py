"""The core's threads under ASan with UBSan, and under TSan."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import build
from tests.shim.region.core import Box

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("preset", ["asan", "tsan"])
def test_threads_reserve_and_refund(tmp_path: Path, preset: str) -> None:
    """The threads first run with a fixed limit. Then they run while the limit changes, and each
    refusal searches for exited processes. One such process exists."""
    sanitized = Box(tmp_path, build(preset) / "bin" / "vgpu-core-test").of_gpus(2)
    assert sanitized.run("threads", "8", "3000", "2") == ["0", "0"]
    with sanitized.holding(1000):
        pass
    sanitized.set_limit(1 << 21)
    with sanitized.shell() as changing:
        assert changing.ask("attach") == "OK"
        for limit in range(1 << 20, (1 << 20) + 50):
            sanitized.set_limit(limit)
            assert changing.ask("limit 0") == str(limit)
            assert changing.ask(f"thread reserve 0 {limit + 1}") == "OVER_LIMIT"
    assert sanitized.run("threads", "8", "500", "2") == ["0", "0"]


def test_no_sanitizer_stands_in_for_the_swap_of_a_word() -> None:
    """ThreadSanitizer's 16-byte swap is a lock and two stores. Others could read half a word."""
    program = build("tsan") / "bin" / "vgpu-mixed-storm"
    wanted = subprocess.run(["nm", "-u", program], capture_output=True, text=True, check=True)
    assert "__tsan_atomic64" in wanted.stdout
    assert "__tsan_atomic128" not in wanted.stdout
