"""Lookups concurrent with threads, forks and unloading: they neither hang nor crash.

The driver here is a library of three functions, which a program can unload; an alarm ends the
programs if a lookup hangs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shim.conftest import GIB, Grants, Host
from tests.shim.drivers import build, build_driver
from tests.shim.loader.test_strict import place

pytestmark = pytest.mark.sim

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


def _program(directory: Path, source: str) -> Path:
    return build(directory / "program", _INCLUDES + source)


@pytest.fixture
def small_driver(tmp_path: Path) -> Path:
    return build_driver(tmp_path, _DRIVER)


_FORKS = """
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
"""


def test_row_32_a_fork_child_can_look_up_whatever_its_parents_threads_did(
    null_host: Host, small_driver: Path, tmp_path: Path
) -> None:
    """libc's lock on the list of objects stays taken in a child whose parent's thread read it."""
    null_host.run([_program(tmp_path, _FORKS), small_driver])


_HANDLERS = """
static void *driver;
static void look(void) { if (!dlsym(driver, "cuInit")) abort(); }
int main(int argc, char **argv)
{
    int status = 0;
    pthread_atfork(look, look, look);
    driver = dlopen(argv[argc - 1], RTLD_NOW);
    look();
    alarm(10);
    for (int round = 0; round < 100; round++) {
        if (!fork()) _exit(0);
        if (wait(&status) < 0 || status) return 1;
    }
    return 0;
}
"""


def test_a_programs_own_handlers_of_fork_may_look_up(
    null_host: Host, small_driver: Path, tmp_path: Path
) -> None:
    """They run between the library's, on the thread that forks: it does not wait for itself."""
    null_host.run([_program(tmp_path, _HANDLERS), small_driver])


_COMES_AND_GOES = """
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
"""


def test_row_32_lookups_while_another_thread_loads_and_unloads_the_driver(
    null_host: Host, small_driver: Path, tmp_path: Path
) -> None:
    null_host.run([_program(tmp_path, _COMES_AND_GOES), small_driver])


_REOPENS = """
int main(int argc, char **argv)
{
    for (int round = 0; round < 5; round++) {
        void *driver = dlopen(argv[argc - 1], RTLD_NOW);
        int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
        if (init(0) || dlclose(driver)) return 1;
        if (!fork()) _exit(0);
        int status;
        if (wait(&status) < 0 || status) return 2;
    }
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    int anchors = 0;
    while (fgets(line, sizeof(line), maps)) {
        anchors += strstr(line, "/region") && strstr(line, " ---s ");
    }
    printf("%d", anchors);
    return 0;
}
"""


def test_a_driver_opened_again_through_the_forwarder_is_one_holder(
    build_dir: Path, library: Path, host: Host, grants: Grants, tmp_path: Path
) -> None:
    """The library stays, with its slot and its account, when the forwarder is closed."""
    drivers = tmp_path / "drivers"
    place(drivers, build_dir, library, host.driver_dir)
    program = _program(tmp_path, _REOPENS)
    done = host.run([program, drivers / "libcuda.so.1"], grants.make(GIB, GIB), preload=False)
    assert done.stdout == "1"
