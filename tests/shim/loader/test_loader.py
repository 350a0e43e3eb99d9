"""Programs that open libraries under libvgpu.so, also beside other preloaded libraries."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuslice.contract import grant_file
from shim import region
from tests.shim.conftest import GIB, NULL_GPU, Host
from tests.shim.drivers import SOURCES, build
from tests.shim.loader.conftest import LIMITED
from tests.support import ROOT

pytestmark = [pytest.mark.sim, pytest.mark.shipped]


def test_row_32_the_opener_keeps_its_own_search_path(null_host: Host, tmp_path: Path) -> None:
    """dlopen identifies its caller by the return address, which the library preserves."""
    beside = tmp_path / "beside"
    beside.mkdir()
    build(beside / "neighbour.so", "int answer(void) { return 42; }")
    opener = build(
        beside / "opener.so",
        """
        #include <dlfcn.h>
        int opened(void) {
            void *volatile handle = dlopen("neighbour.so", RTLD_NOW | RTLD_DEEPBIND);
            return handle ? ((int (*)(void))dlsym(handle, "answer"))() : 1;
        }""",
        "-Wl,-rpath,$ORIGIN",
    )
    source = "int opened(void); int main(void) { return opened(); }"
    program = build(tmp_path / "program", source, opener, f"-Wl,-rpath,{beside}")
    null_host.run([program], status=42)


def test_row_32_lookups_found_in_libc_itself_are_ours(
    library: Path, null_host: Host, tmp_path: Path
) -> None:
    program = build(
        tmp_path / "program",
        """
        #include <dlfcn.h>
        #include <stdio.h>
        typedef void *lookup(void *, const char *);
        int main(void) {
            void *libc = dlopen("libc.so.6", RTLD_NOW), *cuda = dlopen("libcuda.so.1", RTLD_NOW);
            lookup *plain = (lookup *)dlsym(libc, "dlsym");
            if (!plain) plain = (lookup *)dlsym(dlopen("libdl.so.2", RTLD_NOW), "dlsym");
            Dl_info info;
            for (const char *const *name = (const char *const[]){"cuInit", "dlopen", "dlsym", 0};
                 *name; name++) {
                dladdr(plain(**name == 'c' ? cuda : libc, *name), &info);
                puts(info.dli_fname);
            }
            return dlsym(libc, "strlen") == dlsym(libc, "dlsym");
        }""",
    )
    assert null_host.run([program]).stdout == f"{library}\n" * 3


def _assert_limited(null_host: Host, directory: Path, preload: Sequence[Path], *flags: str) -> None:
    """Build strict_program.c with the flags. Check that it is limited with these preloads."""
    region.create(directory, [grant_file.Gpu(NULL_GPU, GIB, 100, 0)])
    program = build(directory / "program", SOURCES / "strict_program.c", *flags)
    variables = {"LD_PRELOAD": " ".join(map(str, preload)), "ASAN_OPTIONS": "detect_leaks=0"}
    done = null_host.run([program, "name"], directory, variables=variables)
    assert (done.stdout, done.stderr) == (LIMITED, "")


# Libraries that users preload. A comment in each source names what it represents.
_OTHERS = {
    "dlsym": """ /* overlays and profilers: dlsym itself, found by dlvsym */
        void *dlsym(void *handle, const char *name) {
            static void *(*real)(void *, const char *);
            if (!real)
                real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
            void *volatile found = real(handle, name);
            return found;
        }""",
    "malloc": """ /* jemalloc and its like: malloc, which looks the next one up when first called */
        static char early[65536]; static size_t used; static int looking;
        void *malloc(size_t bytes) {
            static void *(*real)(size_t);
            if (!real && !looking++) real = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
            if (real) return real(bytes);
            void *at = early + used;
            used += (bytes + 15) & ~(size_t)15;
            return at;
        }
        void free(void *at) {
            static void (*real)(void *);
            if ((char *)at >= early && (char *)at < early + sizeof(early)) return;
            if (!real) real = (void (*)(void *))dlsym(RTLD_NEXT, "free");
            real(at);
        }""",
    "cuda": """ /* a tracer of the driver's calls */
        int cuMemAlloc_v2(unsigned long long *at, size_t bytes) {
            int (*real)(unsigned long long *, size_t) =
                (int (*)(unsigned long long *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
            int volatile result = real(at, bytes);
            return result;
        }""",
}


@pytest.mark.parametrize("ours_first", [True, False], ids=["behind", "before"])
@pytest.mark.parametrize("other", _OTHERS)
def test_row_32_other_preloads_are_transparent(
    other: str, ours_first: bool, library: Path, null_host: Host, tmp_path: Path
) -> None:
    """LD_PRELOAD has another library before or after ours. The limit holds. No call recurses."""
    source = "#include <dlfcn.h>\n#include <stddef.h>\n" + _OTHERS[other]
    built = build(tmp_path / "other.so", source)
    _assert_limited(null_host, tmp_path, [library, built] if ours_first else [built, library])


_SANITIZERS = {
    "asan-static": (["-fsanitize=address", "-static-libasan"], False),
    "asan": (["-fsanitize=address"], True),
    "tsan": (["-fsanitize=thread"], False),
    "asan-preloaded": ([], True),
}


@pytest.mark.parametrize(("flags", "preloaded"), _SANITIZERS.values(), ids=_SANITIZERS)
def test_row_32_sanitizers_of_the_program(
    flags: list[str], preloaded: bool, library: Path, null_host: Host, tmp_path: Path
) -> None:
    """A sanitizer's runtime looks names up before it is ready, and replaces string functions."""
    found = subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True).strip()
    if preloaded and not found.startswith("/"):
        pytest.skip("libasan is not installed")
    runtime = [Path(found).resolve()] if preloaded else []
    _assert_limited(null_host, tmp_path, [*runtime, library], *flags)


def test_row_32_a_statically_linked_cuda_runtime(host: Host, tmp_path: Path) -> None:
    """The real libcudart_static.a calls the library's cuInit, which refuses an unusable grant. Its
    later calls are not tested, because simgpu lacks the tables of cuGetExportTable."""
    archives = list(Path(os.environ.get("VIRTUAL_ENV", ROOT / ".venv")).rglob("libcudart_static.a"))
    if not archives:
        pytest.skip("no libcudart_static.a in the environment")
    source = (
        "#include <stdio.h>\nint cudaGetDeviceCount(int *);\n"
        'int main(void) { int n; printf("%d", cudaGetDeviceCount(&n)); return 0; }'
    )
    program = build(tmp_path / "program", source, archives[0], "-lrt")
    (tmp_path / "grant").write_text("not a grant")
    refused = host.run([program], tmp_path)
    assert refused.stdout == "800"
    assert re.search(r"^gpuslice: no GPU for this process", refused.stderr)
    assert host.run([program], preload=False).stdout == "1"
