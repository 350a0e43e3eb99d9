"""Patterns of the ids of tests that only `make test-all` runs, with the reason.

Most repeat a test of `make test` for longer or with another build, and their reason names that
test. The others, for example the wheel's, have no shorter form.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

_SANITIZERS: Final = "a sanitizer's build of what runs in the shipped build"
_KILLS: Final = "many kills in a row; single ones run in make test"
_BUILDS: Final = "builds the library or the wheel again"
_FAULTS: Final = "a row of make faults like those that run in make test"
_WAYS: Final = "more ways round a limit; chroot, LD_AUDIT and a removal run in make test"
_KUEUE: Final = "needs Kueue, which make setup does not build"
_SEEDS: Final = "more seeds of a random test; others run in make test"

THOROUGH: Final = {
    "tests/fuzz/test_fuzz.py::test_nothing_undocumented_escapes*": "fuzzing",
    "tests/shim/test_aarch64.py::*": "another architecture, under an emulator",
    "tests/shim/*[[][at]san]": _SANITIZERS,
    "tests/shim/region/test_core_sanitizers.py::*": _SANITIZERS,
    "tests/shim/loader/test_symbols.py::*[[]1[14]*": "another generation of the driver",
    "tests/shim/loader/test_library.py::test_links_and_runs_against_the_glibc_of_2012": _BUILDS,
    "tests/shim/test_contributing.py::*": _BUILDS,
    "tests/test_wheel.py::*": _BUILDS,
    "tests/test_site.py::*": "installs mkdocs-material; test_docs.py checks links and names",
    "tests/cli/test_ui.py::test_a_browser_*": "needs a browser",
    "tests/lab/test_product_images.py::test_a_build_from_scratch_*": _BUILDS,
    "tests/lab/test_product_images.py::test_an_image_for_aarch64_*": "as on this machine",
    "tests/shim/region/test_killpoints.py::test_row_21_killed_on_any_path*": _KILLS,
    "tests/shim/region/test_counter.py::test_stopped_and_killed_*": _KILLS,
    "tests/shim/charge/test_neighbours.py::*": (
        "tenants for a minute; test_contexts.py has single steps"
    ),
    "tests/shim/test_storm.py::*": "all paths at once; test_matrix.py has the tests of each",
    "tests/shim/test_processes.py::*[[]three_thousand_kills]": _KILLS,
    "tests/gpu/test_machinery.py::test_the_rows_run_on_*": "the rows of make gpu",
    "tests/node/test_fault_matrix.py::*[[]agent]": _FAULTS,
    "tests/node/test_fault_matrix.py::*[[]cut]": _FAULTS,
    "tests/node/test_fault_matrix.py::*[[]error]": _FAULTS,
    "tests/node/test_fault_matrix.py::*[[]slow]": _FAULTS,
    "tests/node/test_fault_matrix.py::*[[]answer]": _FAULTS,
    "tests/node/test_fault_matrix.py::*[[]pieces]": _FAULTS,
    "tests/node/test_fault_matrix.py::test_without_our_measures_*": _FAULTS,
    "tests/node/audit/test_bypasses.py::*[[][auvl/]*": _WAYS,
    "tests/node/audit/test_bypasses.py::*[[]code*": _WAYS,
    "tests/node/audit/test_honest.py::test_a_thousand_*": "one of each kind runs",
    "tests/node/test_policy.py::test_a_container_restarted_100_times": _KILLS,
    "tests/cluster/test_storms.py::*": "hundreds of pods; the demo binds a few",
    "tests/docker/test_restarts.py::test_[ac]*": "dockerd killed, reboots; test_no_start_* runs",
    "tests/docker/test_container.py::*[[]*-*": "more modes and mounts; one of each runs",
    "tests/docker/test_container.py::test_an_image_*": "what a container leaves in its image",
    "tests/dialects/test_pairs.py::*": (
        "minutes of equal pods; kubelet/test_whole_gpus.py has a few"
    ),
    "tests/node/agent/test_recovery.py::test_idle_and_hostile_*": (
        "waits for deadlines of a quarter of a minute"
    ),
    "tests/cluster/test_service.py::test_a_second_installation_*": "as the tests of leadership",
    "tests/cluster/test_service.py::test_a_simulation_*": "simulate, over a whole cluster",
    "tests/shim/region/test_environment_core.py::test_the_parser_agrees_*": (
        "random texts; region/test_environment.py has one of each kind"
    ),
    "tests/shim/test_processes.py::*[[][1-9][0-9]]": "as with fewer processes",
    "tests/queues/test_judged.py::*": _KUEUE,
    "tests/queues/test_kills.py::*": _KUEUE,
    "tests/queues/test_served.py::*": _KUEUE,
    "tests/traces/test_record.py::*": "records again what test_replay.py replays",
    "tests/lab/test_cluster.py::test_clearing_ends_*": _KILLS,
    "tests/docker/test_run.py::test_[!c]*": "test_containers_keep_their_parts has the main path",
    "tests/docker/test_run_images.py::*": "test_options.py and test_entrypoint.py need no Docker",
    "tests/docker/test_two_gpus.py::*": "another machine for each daemon",
    "tests/docker/test_user_namespace.py::*": "as with a daemon without user namespaces",
    "tests/docker/test_host.py::*[[]*host_first]": _KILLS,
    "tests/docker/test_host.py::test_a_*": _KILLS,
    "tests/docker/test_host.py::test_[!a]*": _KILLS,
    "tests/node/test_lab.py::test_the_checks_of_a_demo_*": "make demo-node, make demo-faults",
    "tests/node/library/test_limits.py::test_sixteen_gpus_*": "as many GPUs as a grant may have",
    "tests/scheduler/decisions/test_mixes.py::*[[][2-9]]": _SEEDS,
    "tests/scheduler/core/test_oracle.py::test_fit_and_place_*[[][3-9]]": _SEEDS,
    "tests/scheduler/test_binder_interleavings.py::*[[][5-9][0-9]]": _SEEDS,
    "tests/scheduler/test_binder_interleavings.py::*[[]1[0-9][0-9]]": _SEEDS,
    "tests/scheduler/test_leadership_runs.py::*[[][1-4][0-9]-*": _SEEDS,
}

WHOLE: Final = {
    "tests/e2e/test_demo.py::test_a_run_is_as_documented_and_leaves_nothing",
    "tests/e2e/test_install.py::test_the_documents_pod_runs_after_helm_install",
    "tests/e2e/test_install.py::test_strict_mode_limits_a_container_and_uninstall_leaves_nothing",
}
"""The tests of tests/e2e that `make test` runs too."""


def is_thorough(identity: str) -> bool:
    """Return whether only `make test-all` runs the test with this node id."""
    return any(fnmatchcase(identity, pattern) for pattern in THOROUGH)
