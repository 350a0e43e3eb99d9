"""The variables of modules and libraries, and code that does not fit."""

from __future__ import annotations

import pytest

from tests.simgpu.host import Host
from tests.simgpu.programs.image_programs import PROGRAMS

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("name", PROGRAMS)
def test_images(driver_host: Host, name: str) -> None:
    driver_host.program("image_programs", name)


def test_a_library_that_fits_no_gpu_is_loaded_eagerly_too(driver_host: Host) -> None:
    driver_host.program("image_programs", "eager_loading", CUDA_MODULE_LOADING="EAGER")
