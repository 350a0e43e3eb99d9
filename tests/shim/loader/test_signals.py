"""A signal handler that calls CUDA, which NVIDIA does not allow, does not hang in the library.

The test's small driver takes no lock, so a hang would be the library's. A child of each program
kills the program after two minutes.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpuslice.contract import grant_file
from shim import region
from tests.shim.conftest import GIB, Host, used
from tests.shim.drivers import DRIVERS, build, build_driver

pytestmark = pytest.mark.sim

_DRIVER = f"""
#define GPUS 1
#include "{DRIVERS / "small_driver.h"}"
#include <stdint.h>
#define UNUSED __attribute__((unused))
static uint64_t next_bytes = UINT64_C(1) << 40;
static char context;
static void linger(void) {{ for (volatile int i = 0; i < 300; i++); }}
int cuCtxCreate_v2(void **out, UNUSED unsigned flags, UNUSED int device)
{{ *out = current = &context; return 0; }}
int cuCtxPushCurrent_v2(void *pushed) {{ current = pushed; return 0; }}
int cuCtxPopCurrent_v2(void **out) {{ *out = current; return 0; }}
int cuMemAlloc_v2(uint64_t *out, size_t bytes)
{{
    uint64_t room = bytes < (1 << 21) ? (bytes + 511) & ~511ull : (bytes + (2 << 21)) >> 21 << 21;
    linger();
    *out = __atomic_fetch_add(&next_bytes, room, __ATOMIC_RELAXED);
    return 0;
}}
int cuMemFree_v2(UNUSED uint64_t address) {{ linger(); return 0; }}
int cuMemGetInfo_v2(size_t *free, size_t *total)
{{ linger(); *free = *total = 4ull << 30; return 0; }}
"""

_STORM = """
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define MUST(condition) if (!(condition)) abort()
int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuCtxPushCurrent_v2(void *);
int cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t), cuMemGetInfo_v2(size_t *, size_t *);
static volatile sig_atomic_t handled, wanted = 2000;
static void *volatile context;
static size_t free_bytes, total_bytes;
static void use(size_t bytes)
{
    uint64_t address = 0;
    int code = cuMemAlloc_v2(&address, bytes);
    MUST(code == 0 || (code == 2 && !address));
    MUST(!cuMemGetInfo_v2(&free_bytes, &total_bytes));
    MUST(code || !cuMemFree_v2(address));
}
static void handler(int signal)
{
    int kept = errno, status;
    if (!context) return;
    use(1000);
    use(3 << 20);
    if (handled++ % 256 == 0) {
        pid_t child = fork();
        if (!child) {
            uint64_t address;
            cuMemAlloc_v2(&address, 1000);
            cuMemGetInfo_v2(&free_bytes, &total_bytes);
            _exit(0);
        }
        while (waitpid(child, &status, 0) < 0 && errno == EINTR);
        MUST(status == 0);
    }
    errno = kept;
}
static void *work(void *unused)
{
    while (handled < wanted) { use(1000); use(3 << 20); }
    return unused;
}
static void *work_undisturbed(void *unused)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    cuCtxPushCurrent_v2(context);
    return work(unused);
}
static void pester(pid_t parent)
{
    for (time_t end = time(NULL) + 120; time(NULL) < end; usleep(100))
        if (kill(parent, SIGUSR1)) _exit(0);
    kill(parent, SIGKILL);
    _exit(0);
}
int main(int argc, char **argv)
{
    pid_t parent = getpid(), child;
    pthread_t other;
    void *made;
    signal(SIGUSR1, handler);
    if (!(child = fork())) pester(parent);
    if (cuInit(0) || cuCtxCreate_v2(&made, 0, 0)) return 2;
    context = made;
    if (argc > 1) wanted = 100, pthread_create(&other, NULL, work_undisturbed, NULL);
    work(NULL);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    if (argc > 1) pthread_join(other, NULL);
    use(1000);
    printf("%d\\n", (int)handled);
    fflush(stdout);
    getchar();
    return 0;
}
"""


@pytest.mark.parametrize("threads", [[], ["two"]], ids=["alone", "beside a thread"])
def test_a_storm_of_handlers_that_call_cuda_hangs_nowhere(
    library: Path, tmp_path: Path, threads: list[str]
) -> None:
    """Each call returns its usual code or out of memory. The charge covers all allocations."""
    driver = build_driver(tmp_path, _DRIVER)
    program = build(tmp_path / "storm", _STORM, f"-L{tmp_path}", "-l:libcuda.so.1")
    region.create(tmp_path, [grant_file.Gpu(f"GPU-{'aa' * 16}", GIB, 100, 0)])
    with subprocess.Popen(
        [program, *threads],
        env=Host(library, driver.parent).environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout
        handled = running.stdout.readline()
        assert handled, running.wait()
        left = used(tmp_path)
        running.communicate("\n")
    assert running.returncode == 0 and int(handled) >= 100
    assert 0 <= left <= GIB, "what a handler freed may stay charged until its context ends"
