"""CONTRIBUTING's "Add a hook", followed in a copy: one line and one function."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.sim

_FIRST_OF_NVML = "\nNVML_HOOK(nvml"
_PROGRAM = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

int cuDriverGetVersion(int *version);
int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

int main(void)
{
	int linked = 0, looked_up = 0, asked_for = 0, status;
	int (*function)(int *) = (int (*)(int *))dlsym(RTLD_DEFAULT, "cuDriverGetVersion");
	void *answer = NULL;

	cuDriverGetVersion(&linked);
	function(&looked_up);
	cuGetProcAddress_v2("cuDriverGetVersion", &answer, 12000, 0, &status);
	((int (*)(int *))answer)(&asked_for);
	printf("%d %d %d\n", linked, looked_up, asked_for);
	return 0;
}
"""


def _documented() -> tuple[str, str]:
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Add a hook")[1]
    line, function = re.findall(r"```c\n(.*?)```", section, re.DOTALL)
    return line, function


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("contributing")
    shutil.copytree(ROOT / "shim", directory / "shim")
    return directory


def _build(copy: Path) -> subprocess.CompletedProcess[str]:
    commands: tuple[list[str | Path], ...] = (
        ["cmake", "-S", copy / "shim", "-B", copy / "build"],
        ["cmake", "--build", copy / "build", "--parallel", "2", "--target", "vgpu"],
    )
    for command in commands:
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            break
    return done


def test_the_documented_line_and_function_are_a_hook(copy: Path, build_dir: Path) -> None:
    line, function = _documented()
    hooks, subject = copy / "shim/src/loader/hooks.def", copy / "shim/src/hooks/cuda_memory.c"
    before = hooks.read_text()
    assert before.count("cuDriverGetVersion") == 0 and _FIRST_OF_NVML in before
    hooks.write_text(before.replace(_FIRST_OF_NVML, f"\n{line}{_FIRST_OF_NVML}", 1))

    without_function = _build(copy)
    assert without_function.returncode != 0
    assert "cuDriverGetVersion" in without_function.stdout + without_function.stderr

    with subject.open("a") as file:
        file.write(f"\n{function}")
    built = _build(copy)
    assert built.returncode == 0, built.stdout + built.stderr

    source, program = copy / "program.c", copy / "program"
    source.write_text(_PROGRAM)
    driver = build_dir / "lib" / "simgpu"
    link = (f"-L{driver}", "-l:libcuda.so.1", "-ldl")
    subprocess.run(["gcc", "-D_GNU_SOURCE", "-o", program, source, *link], check=True)

    def said(**environment: str) -> str:
        return subprocess.run(
            [program],
            env={"LD_LIBRARY_PATH": str(driver), **environment},
            text=True,
            capture_output=True,
            check=True,
        ).stdout

    assert said() == "13000 13000 13000\n"
    (library,) = (copy / "build").rglob("libvgpu.so")
    assert said(LD_PRELOAD=str(library)) == "12080 12080 12080\n"
