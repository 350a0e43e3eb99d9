"""Lookups concurrent with threads, forks and unloading: they neither hang nor crash.

The driver here is a library of three functions, which a program can unload; an alarm ends the
programs if a lookup hangs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shim.conftest import Host
from tests.shim.drivers import build, build_driver

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
