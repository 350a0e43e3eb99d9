"""dlsym and dlvsym give the same results with and without the library, except for driver functions.

Each program runs without the library and with it. Where the first run found a driver function, the
second must find its wrapper. All other results must be equal.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.shim.conftest import Host
from tests.shim.drivers import build, build_driver
from tests.shim.loader.conftest import Look

pytestmark = pytest.mark.sim

_LOOKUPS = ("default", "next", "self", "vdefault")
_EVERY_WAY = [f"{way}:{name}" for way in _LOOKUPS for name in ("cuMemAlloc_v2", "cuInit")]


def _as_ours(lines: Sequence[str]) -> Sequence[str]:
    return [re.sub(r"libcuda\.so\.[0-9.]+$", "libvgpu.so", line) for line in lines]


# The steps of programs. EVERY_WAY stands for all lookups, twice. Both times have equal results.
_HISTORIES = {
    "no driver": "EVERY_WAY",
    "driver loaded for all": "global:{driver} handle:cuMemAlloc_v2 vhandle:cuMemAlloc_v2 EVERY_WAY",
    "names of no library": "global:{driver} handle:cuNoSuch default:cuNoSuch next:nvmlNoSuch",
    "private alone, local": "open:{private} private_next private_default handle:cuInit"
    " call:cuMemAlloc_v2 EVERY_WAY",
    "private alone, for all": "global:{private} private_next private_default EVERY_WAY",
    "private, then driver": "global:{private} global:{driver} handle:cuMemAlloc_v2"
    " global:{private} handle:cuMemAlloc_v2 call:cuMemAlloc_v2 private_default EVERY_WAY",
    "driver, then private": "global:{driver} global:{private} handle:cuMemAlloc_v2"
    " private_next private_next private_default EVERY_WAY",
    # After the driver is unloaded, another library may be loaded at its address.
    "driver unloaded and loaded again": "open:{driver} call:cuMemAlloc_v2 close open:{private}"
    " open:{driver} call:cuMemAlloc_v2 close default:cuInit open:{driver} call:cuMemAlloc_v2 close",
}
_VERSIONED = "open:{tmp}/libcuda.so.580.65.06 handle:cuMemAlloc_v2 handle:cuMemFree_v2"
_HISTORIES_SHIPPED = {
    "driver by its absolute versioned path": _VERSIONED,
    "driver by its path beside the usual one": f"open:{{driver}} {_VERSIONED}",
    # A library opened with RTLD_DEEPBIND finds libc's dlsym before ours.
    "private opened deep": "deep:{private} private_driver:{driver}",
    "driver opened deep": "deep:{driver} handle:cuMemAlloc_v2",
}


@pytest.mark.parametrize(
    "history",
    [
        *(pytest.param(each, id=name) for name, each in _HISTORIES.items()),
        *(
            pytest.param(each, id=name, marks=pytest.mark.shipped)
            for name, each in _HISTORIES_SHIPPED.items()
        ),
    ],
)
def test_row_32_answers_are_what_they_would_be_without_us(
    history: str, look: Look, library: Path, driver: Path, tmp_path: Path
) -> None:
    shutil.copy(driver, tmp_path / "libcuda.so.580.65.06")
    lookups = history.replace("EVERY_WAY", " ".join([*_EVERY_WAY, *_EVERY_WAY, "error"]))
    assert look(lookups, library) == _as_ours(look(lookups))


@pytest.mark.parametrize("first", ["library", "private"])
def test_row_32_a_second_interposer_keeps_its_place(
    first: str, look: Look, library: Path, private: Path
) -> None:
    """LD_PRELOAD has the interposer before or after the library. The interposer looks up the next
    definition, which is the driver's, and gets its wrapper."""
    order = [library, private] if first == "library" else [private, library]
    lookups = "global:{driver} open:{private} private_next private_next handle:cuMemAlloc_v2"
    assert look(lookups, *order) == _as_ours(look(lookups, private))


def test_a_driver_loaded_for_one_library_alone_is_found_by_default(
    look: Look, library: Path
) -> None:
    """The driver is opened with RTLD_LOCAL, but the library exports the name, so it is found."""
    answers = look("open:{driver} default:cuMemAlloc_v2 error", library)
    assert answers == ["default:cuMemAlloc_v2 libvgpu.so", "error no"]


@pytest.mark.shipped
def test_row_32_dlmopen_of_the_driver_stays_in_the_programs_namespace(
    look: Look, library: Path
) -> None:
    of_driver = "apart:{driver} handle:cuMemAlloc_v2"
    assert look(of_driver) == ["apart apart", "handle:cuMemAlloc_v2 libcuda.so.1"]
    assert look(of_driver, library) == ["apart base", "handle:cuMemAlloc_v2 libvgpu.so"]
    assert look("apart:{private}", library) == ["apart apart"]


def test_names_that_are_not_hooked_are_untouched(look: Look, library: Path) -> None:
    lookups = "global:{driver} handle:cuCtxGetDevice next:cuCtxGetDevice handle:malloc next:malloc"
    assert look(lookups, library) == look(lookups)


# A small driver that a program can unload.
_DRIVER = """
int cuInit(unsigned flags) { return flags; }
int cuMemAlloc_v2(void *at, unsigned long bytes) { return at && bytes ? 0 : 1; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
"""
_INCLUDES = """
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
"""
_TURMOIL = {
    # If another thread looks a name up during a fork, the child inherits libc's list lock as held.
    "forks of a thread that looks up": """
static void *look(void *driver) { for (;;) dlsym(driver, "cuMemAlloc_v2"); return NULL; }
static int ended_badly(pid_t child)
{
    int status;
    return waitpid(child, &status, 0) != child || status;
}
int main(int argc, char **argv)
{
    void *driver = dlopen(argv[argc - 1], RTLD_NOW);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, look, driver);
    alarm(120);
    for (int round = 0; round < 1000; round++) {
        pid_t child = fork();
        if (!child) {
            alarm(30);
            pid_t grandchild = fork();
            if (!grandchild) _exit(!dlsym(driver, "cuInit"));
            _exit(ended_badly(grandchild) || !dlsym(driver, "cuInit"));
        }
        if (ended_badly(child)) return 1;
    }
    _exit(0);
}
""",
    "a driver that another thread loads and unloads": """
static volatile int stop;
static void *look(void *unused)
{
    while (!stop) {
        dlsym(RTLD_DEFAULT, "cuInit");
        dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    }
    return unused;
}
int main(int argc, char **argv)
{
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, look, NULL);
    for (int round = 0; round < 30000; round++) {
        void *driver = dlopen(argv[argc - 1], RTLD_NOW);
        int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
        if (!init || init(0)) return 1;
        dlclose(driver);
    }
    stop = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
""",
}


@pytest.mark.parametrize("turmoil", _TURMOIL)
def test_row_32_lookups_neither_hang_nor_crash(
    null_host: Host, tmp_path: Path, turmoil: str
) -> None:
    """An alarm ends a program whose lookup hangs."""
    driver = build_driver(tmp_path, _DRIVER)
    null_host.run([build(tmp_path / "program", _INCLUDES + _TURMOIL[turmoil]), driver])
