"""Faults of a node: the effect, the report, and the test of each.

Data only. A test is in tests/node, on a real containerd, in tests/shim or in tests/nri_plugin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.node.table import Row

FAILURE_ROWS: Final[Sequence[Row]] = (
    Row(
        "the allocation is malformed, or its limit invalid: not JSON, not a quantity, no memory,"
        " more than the GPU",
        "CreateContainer fails",
        "`gpuslice refuses container ...`, with the field, the value and the allowed values",
        "test_a_malformed_annotation_is_refused_with_its_reason",
    ),
    Row(
        "the allocation is not JSON, in a pod with neither the label nor `gpuslice.io/grants`",
        "it starts without a GPU",
        "event `WithoutGPU`: `annotation ...: not JSON: ...`",
        "test_an_unreadable_allocation_of_a_pod_that_requests_no_share_is_no_gpu",
    ),
    Row(
        "the pod has the isolation label, but no allocation",
        "it starts without a GPU",
        "event `WithoutGPU`: `label ... is set, but the pod has no GPU allocation`",
        "test_a_plan_without_a_gpu_warns_with_the_reason",
    ),
    Row(
        "the node's default runtime runs containers in a sandbox of their own (Kata), and the pod"
        " has no RuntimeClass",
        "StartContainer fails",
        "`runtime: invalid value (a sandbox of its own, such as Kata's: ...): must be runc or"
        " crun`",
        "test_a_runtime_that_runs_containers_in_a_sandbox",
    ),
    Row(
        "a GPU of the pod failed",
        "CreateContainer fails for the containers that have a share of it, after the next query of"
        " NVML (every 15 s while containers are created); others start",
        "`invalid value GPU-...: must be a healthy GPU: ...`, or, where NVML no longer lists it,"
        " `must be a GPU of this node (...)`",
        "test_containers_with_a_share_of_a_failed_gpu_are_refused",
    ),
    Row(
        "the agent is not running, and the pod was placed by our scheduler",
        "CreateContainer fails until an agent runs again",
        '`required plugin "gpuslice" not present`',
        "test_nothing_runs_unprotected[never]",
    ),
    Row(
        "the agent is not running, and nothing in the pod requires it (Koordinator's own pods)",
        "the container runs without a GPU",
        "CUDA: no driver, as on a machine without one",
        "test_without_the_agent_there_is_no_gpu",
    ),
    Row(
        "the agent is killed while pods run",
        "limits stay in force; new pods as in the two rows above",
        "",
        "test_nothing_runs_unprotected[killed]",
    ),
    Row(
        "the agent is killed while a container is created",
        "CreateContainer fails, or the container has its limit; where nothing requires the "
        "agent, it may run without a GPU",
        "`validator plugin ... failed`",
        "test_nothing_runs_unprotected[crash]",
    ),
    Row(
        "the agent does not run, or hangs, while a container starts that it has adjusted",
        "it starts, with its limit; checks at start (images, volumes, capabilities that remove the"
        " limit) run once it runs again: the next two rows",
        "",
        "test_a_container_that_starts_while_the_agent_is_away_has_its_limit",
    ),
    Row(
        "an image, volume, capability or hook of the runtime hides or removes the limit of a"
        " container while the agent does not check it",
        "it runs without its limit until the agent reports it at its next check; delete its pod",
        "log `limit not in place`, `gpuslice_limit_not_in_place_total`, the pod's event"
        " `LimitNotInPlace`",
        "test_a_limit_that_was_hidden_while_the_agent_was_away_is_named",
    ),
    Row(
        "a GPU has no free capacity, and an annotation grants more of it (forged, or written by two"
        " schedulers)",
        "CreateContainer fails until enough running containers have exited; also after a restart of"
        " agent or containerd",
        "`GPU-...: insufficient free capacity: ...; granted: ...` (`GPU_FULL`)",
        "test_a_gpu_that_is_all_granted_refuses_more",
    ),
    Row(
        "another NRI plugin changes, removes or takes over a part of the agent's adjustment",
        "CreateContainer fails (2.2 and newer; 1.7 has no validation)",
        "`another NRI plugin changed the agent's adjustment: ...`",
        "test_a_container_with_a_share_stays_as_we_made_it",
    ),
    Row(
        "a second agent starts beside the first",
        "it waits until the first has exited, and serves no container until then",
        "in its log and `/readyz`: `another agent serves this node (pid=...)`",
        "test_in_a_rolling_update_no_two_agents_conflict",
    ),
    Row(
        "the agent hangs",
        "CreateContainer fails, after the runtime's deadline for plugins; the agent registers"
        " again when it resumes",
        "`validator plugin ... failed`",
        "test_nothing_runs_unprotected[hang]",
    ),
    Row(
        "the agent could not measure the memory of a context on a GPU: other processes use it, it"
        " is lost, or NVML did not report it",
        "containers run; each of their contexts is charged 512 MiB",
        "in the agent's log, once: `context size unknown`",
        "test_a_failed_measurement_is_logged_once_and_repeated",
    ),
    Row(
        "NVML's calls about one GPU hang",
        "CreateContainer fails for the containers that have a share of it; others start, and are"
        " measured, also after a restart of the agent",
        "`invalid value GPU-...: must be a healthy GPU: NVML did not answer for it in 10 s`; in a"
        " cluster the Device's condition, and event `GpuFailed`",
        "test_a_gpu_that_hangs_takes_no_other",
    ),
    Row(
        "NVML does not list the processes, or has no figure for one (some MIG drivers)",
        "containers run; their overhead stays as last measured",
        "`gpuslice_containers_not_measured`; in the agent's log, once: `the driver's own memory is"
        " not measured`",
        "test_nvml_that_does_not_answer_is_not_queried_for_a_while",
    ),
    Row(
        "the node restarts, and a share starts before the agent (Koordinator's own pods, or NRI's"
        " validator is off)",
        "it runs without a GPU until its pod is deleted, or the kubelet restarts the container",
        "event `WithoutGPU`: `... was created while the node agent did not run; delete the pod`;"
        ' `gpuslice_stray_containers{kind="not_adjusted"}`',
        "test_a_share_that_started_before_the_agent_keeps_its_allocation",
    ),
    Row(
        "the agent or the arbiter has no file descriptor left",
        "CreateContainer fails for containers with a grant until one is free; a running container"
        " may not be checked or measured, and keeps its limit",
        "`the agent has no file descriptors or no memory left: ...`; logs `limit not checked`,"
        " `arbiter reports`",
        "test_without_descriptors_the_agent_names_no_other_cause",
    ),
    Row(
        "containerd restarts",
        "limits stay in force; the agent registers again",
        "",
        "test_nothing_runs_unprotected[containerd]",
    ),
    Row(
        "the library is missing on the host",
        "CreateContainer fails for containers with a grant; others run",
        "`the library is missing on this node: ...`",
        "test_what_is_missing_on_the_node_refuses_until_it_is_there",
    ),
    Row(
        "the arbiter exits, or is killed",
        "each container keeps its own part of each 100 ms until the agent has started another"
        " one, 0.1 s later at first",
        "logs `arbiter exited`; `gpuslice_arbiter_up` is 0 meanwhile",
        "test_an_arbiter_that_is_killed_is_followed_by_another",
    ),
    Row(
        "the arbiter hangs, stopped or in a system call",
        "as in the row above, once the agent has killed it, after 4 s",
        "logs `arbiter exited`, `killed: no heartbeat for 4 s`",
        "test_an_arbiter_without_heartbeats_is_killed_and_replaced",
    ),
    Row(
        "the agent is killed while containers share a GPU's time",
        "the arbiter exits with it; each container keeps its own part of each 100 ms until an"
        " agent runs again",
        "",
        "test_an_agent_that_is_killed_leaves_no_arbiter",
    ),
    Row(
        "the agent is killed while these containers have work in flight",
        "no container waits, gets another's share, or loses more than ten points of its own in"
        " ten seconds",
        "",
        "test_an_agent_that_is_killed_costs_no_container_its_share",
    ),
    Row(
        "the agent is stopped while these containers have work in flight, alone or with its"
        " arbiter",
        "the arbiter continues; if both are stopped, each container keeps its own part of each"
        " 100 ms. The bounds are those of the row above",
        "",
        "test_an_agent_that_is_stopped_costs_no_container_its_share",
    ),
    Row(
        "a kernel runs for more than a second",
        "the next container of the GPU starts beside it, 100 ms after its window; half of the time"
        " is deducted from the container's later windows",
        "logs `LimitNotEnforceable`, and an event of the pod",
        "test_a_long_kernel_is_reported",
    ),
    Row(
        "the region was truncated (by root in the container)",
        "cuInit: `CUDA_ERROR_NOT_PERMITTED`; other programs run",
        "`gpuslice: ... is truncated, damaged, or of another grant`",
        "test_row_25_a_region_that_cannot_be_used_is_no_gpu_and_the_program_runs",
    ),
    Row(
        "the region cannot be written",
        "cuInit: `CUDA_ERROR_NOT_PERMITTED`; other programs run",
        "`gpuslice: ... cannot be written`",
        "test_row_25_a_region_that_cannot_be_used_is_no_gpu_and_the_program_runs",
    ),
    Row(
        "the region is truncated while programs use it",
        "SIGBUS ends each program of the container at its next allocation; new programs: as in the"
        " two rows above",
        "",
        "test_row_25_a_region_truncated_while_in_use_ends_its_process_before_it_gets_more",
    ),
    Row(
        "the region is sparse, on a full disk",
        "cuInit: `CUDA_ERROR_NOT_PERMITTED`; the program continues without a GPU",
        "`gpuslice: ... No space left on device`",
        "test_row_25_a_region_that_cannot_be_used_is_no_gpu_and_the_program_runs",
    ),
    Row(
        "more than 512 processes of one container use the GPU",
        "cuInit: `CUDA_ERROR_NOT_PERMITTED` for the others",
        "`gpuslice: ... too many processes use the GPU in this container`",
        "test_row_24_eleven_hundred_processes",
    ),
    Row(
        "a signal handler calls CUDA (which NVIDIA does not allow) while its thread is inside a"
        " hook of the library",
        "no call waits: an allocation is refused with `CUDA_ERROR_OUT_OF_MEMORY`, the end of a"
        " pool with `CUDA_ERROR_NOT_READY`; freed memory may stay charged until its context ends",
        "",
        "test_a_storm_of_handlers_that_call_cuda_hangs_nowhere",
    ),
    Row(
        "a process is killed anywhere inside an allocation, a free, an export or an import",
        "its charge is reclaimed, no process waits, the counters equal the GPU's",
        "",
        "test_row_21_killed_at_any_step_of_a_call",
    ),
)
