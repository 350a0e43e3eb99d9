"""The recipe "Add a hook", followed in a copy of the tree: one line and one function."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.shim.drivers import build
from tests.support import ROOT, run

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


def test_the_documented_line_and_function_are_a_hook(tmp_path: Path, build_dir: Path) -> None:
    section = (ROOT / "docs/recipes/README.md").read_text().split("## Add a hook")[1]
    line, function = re.findall(r"```c\n(.*?)```", section, re.DOTALL)
    shim, output = tmp_path / "shim", tmp_path / "build"
    shutil.copytree(ROOT / "shim", shim)
    run("cmake", f"-S{shim}", f"-B{output}", check=True)
    building = ("cmake", "--build", output, "--parallel", "2", "--target", "vgpu")
    hooks = shim / "src/loader/hooks.def"
    before = hooks.read_text()
    assert before.count("cuDriverGetVersion") == 0 and _FIRST_OF_NVML in before
    hooks.write_text(before.replace(_FIRST_OF_NVML, f"\n{line}{_FIRST_OF_NVML}", 1))
    without_function = run(*building)
    assert without_function.returncode != 0
    assert "cuDriverGetVersion" in without_function.stdout + without_function.stderr
    with (shim / "src/hooks/cuda_memory.c").open("a") as file:
        file.write(f"\n{function}")
    complete = run(*building)
    assert complete.returncode == 0, complete.stdout + complete.stderr

    driver = build_dir / "lib" / "simgpu"
    program = build(tmp_path / "program", _PROGRAM, f"-L{driver}", "-l:libcuda.so.1")
    bare = {"LD_LIBRARY_PATH": str(driver)}
    (library,) = output.rglob("libvgpu.so")
    for environment, version in ((bare, 13000), ({**bare, "LD_PRELOAD": str(library)}, 12080)):
        said = subprocess.check_output([program], env=environment, text=True)
        assert said == f"{version} {version} {version}\n"
