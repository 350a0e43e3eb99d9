"""dlsym and dlvsym under the library: the bare program's results, except for the driver's.

The oracle is the same program without the library. Where it got the driver's function it must now
get the wrapper, and in every other case exactly what it got before.
"""

from __future__ import annotations

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
    return [line.replace("libcuda.so.1", "libvgpu.so") for line in lines]


# Each is a program's history; {driver} and {private} are libraries that it loads.
_HISTORIES = {
    "no driver": "",
    "driver loaded for all": "global:{driver} handle:cuMemAlloc_v2 vhandle:cuMemAlloc_v2",
    "names of no library": "global:{driver} handle:cuNoSuch default:cuNoSuch next:nvmlNoSuch",
    "private alone, local": "open:{private} private-next private-default handle:cuInit"
    " call:cuMemAlloc_v2",
    "private alone, for all": "global:{private} private-next private-default",
    "private, then driver": "global:{private} global:{driver} handle:cuMemAlloc_v2"
    " global:{private} handle:cuMemAlloc_v2 call:cuMemAlloc_v2 private-default",
    "driver, then private": "global:{driver} global:{private} handle:cuMemAlloc_v2"
    " private-next private-next private-default",
}


@pytest.mark.parametrize("history", _HISTORIES.values(), ids=_HISTORIES.keys())
def test_row_32_answers_are_what_they_would_be_without_us(
    history: str, look: Look, library: Path, driver: Path, private: Path
) -> None:
    loaded = history.format(driver=driver, private=private).split()
    arguments = [*loaded, *_EVERY_WAY, *_EVERY_WAY, "error"]  # again: asking uses nothing up
    assert look(*arguments, preload=[library]) == _as_ours(look(*arguments))


@pytest.mark.parametrize("first", ["library", "private"])
def test_row_32_a_second_interposer_keeps_its_place(
    first: str, look: Look, library: Path, driver: Path, private: Path
) -> None:
    """It stands before or behind the library. Its next definition is the driver, in whose place the
    library is."""
    order = [library, private] if first == "library" else [private, library]
    arguments = [
        f"global:{driver}",
        f"open:{private}",
        "private-next",
        "private-next",
        "handle:cuMemAlloc_v2",
    ]
    assert look(*arguments, preload=order) == _as_ours(look(*arguments, preload=[private]))


def test_a_driver_loaded_for_one_library_alone_is_found_by_default(
    look: Look, library: Path, driver: Path
) -> None:
    """The library's export hides the caller's own scope, so the library answers for that scope."""
    answers = look(f"open:{driver}", "default:cuMemAlloc_v2", "error", preload=[library])
    assert answers == ["default:cuMemAlloc_v2 libvgpu.so", "error no"]


def test_a_driver_unloaded_and_loaded_again_is_followed(
    look: Look, library: Path, driver: Path, private: Path
) -> None:
    """Code at the driver's old address must not be called: another library may be there now."""
    again = [f"open:{driver}", "call:cuMemAlloc_v2", "close"]
    answers = look(*again, f"open:{private}", *again, "default:cuInit", *again, preload=[library])
    assert answers == _as_ours(look(*again, f"open:{private}", *again, "default:cuInit", *again))


def test_names_that_are_not_hooked_are_untouched(look: Look, library: Path, driver: Path) -> None:
    names = [f"{way}:{name}" for name in ("cuCtxGetDevice", "malloc") for way in ("handle", "next")]
    arguments = [f"global:{driver}", *names]
    assert look(*arguments, preload=[library]) == look(*arguments)


# A driver of three functions, which a program can unload.
_DRIVER = """
int cuInit(unsigned flags) { return flags; }
int cuMemAlloc_v2(void *at, unsigned long bytes) { return at && bytes ? 0 : 1; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
"""
_INCLUDES = """
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
"""
_TURMOIL = {
    # libc's lock on the list of objects stays taken in a child whose parent's thread read it.
    "forks of a thread that looks up": """
static void *look(void *driver) { for (;;) dlsym(driver, "cuMemAlloc_v2"); return NULL; }
int main(int argc, char **argv)
{
    void *driver = dlopen(argv[argc - 1], RTLD_NOW);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, look, driver);
    alarm(120);
    for (int round = 0; round < 1000; round++) {
        pid_t child = fork();
        int status;
        if (!child) {
            alarm(30);
            pid_t grandchild = fork();
            if (!grandchild) _exit(!dlsym(driver, "cuInit"));
            _exit(waitpid(grandchild, &status, 0) != grandchild || status ||
                  !dlsym(driver, "cuInit"));
        }
        if (waitpid(child, &status, 0) != child || status) {
            printf("round %d: %#x", round, status);
            return 1;
        }
    }
    _exit(0);
}
""",
    "a driver that another thread loads and unloads": """
static const char *path;
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
    path = argv[argc - 1];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, look, NULL);
    for (int round = 0; round < 30000; round++) {
        void *driver = dlopen(path, RTLD_NOW);
        int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
        int code = init ? init(0) : -1;
        if (code) {
            printf("round %d: %d", round, code);
            return 1;
        }
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
