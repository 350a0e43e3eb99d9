"""The policy as a table: every kind of container, the agent's action, the visible result.

Data only; nri_plugin/policy/checks.py decides. tests/node/test_policy*.py has a test for
each row, named after it, over a real containerd. docs/failures.md is generated from here, with the
table of failure_rows.py:

    python -m tests.node.cases docs/failures.md

In `sees`, text between backquotes appears literally; "..." stands for anything.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.node import failure_rows

BEGIN: Final = "<!-- written by python -m tests.node.cases -->\n"
END: Final = "<!-- end of what is written -->\n"

_LIMITED: Final = "injects the GPU with its limit"
_REFUSES: Final = "refuses to create it"
_STOPS: Final = "refuses to start it"
_SHARE: Final = "its share"
_NOTHING: Final = "no GPU"


@dataclass(frozen=True, slots=True)
class Case:
    """A row. name: of its test, without `test_`; given: the container; does: the agent's action;
    sees: what the pod's author sees."""

    name: str
    given: str
    does: str
    sees: str

    @property
    def test(self) -> str:
        return f"test_{self.name}"


CASES: Final[Sequence[Case]] = (
    # --- which containers hold a GPU ---
    Case("a_container_with_a_grant", "a container with a grant", _LIMITED, _SHARE),
    Case(
        "a_container_without_one_in_the_same_pod",
        "a container without a grant, in a pod that has one",
        "sets `NVIDIA_VISIBLE_DEVICES=void`",
        _NOTHING,
    ),
    Case(
        "an_init_container",
        "an init container: with a grant, of all that the pod was allocated, and without",
        "as for any container, by its name; while it runs, another one is refused the same part",
        "its share, or no GPU; `containers.main: ... must be at most 0, the free part of the"
        " pod's allocation of 21474836480; ... granted to running containers: ...init 21474836480`",
    ),
    Case(
        "a_sidecar",
        "a sidecar (an init container that keeps running), with a grant beside the main one's",
        "gives each its own share",
        "two shares at the same time",
    ),
    Case(
        "an_ephemeral_container",
        "an ephemeral container (kubectl debug)",
        "sets `NVIDIA_VISIBLE_DEVICES=void`: its name is in no grant",
        "no GPU; in pods that Koordinator's scheduler placed, which name no containers, the pod's"
        " own share",
    ),
    Case(
        "a_pod_without_a_grant_on_a_managed_node",
        "a pod that requests no GPU",
        "nothing",
        "no GPU; its environment as the image has it",
    ),
    Case(
        "an_allocation_without_the_label",
        "an allocation, and no isolation label",
        _LIMITED,
        _SHARE,
    ),
    Case(
        "an_unknown_isolation_provider",
        "an isolation label of another provider",
        _REFUSES,
        "`label koordinator.sh/gpu-isolation-provider: invalid value 'mps': must be 'hami-core'`;"
        " without an allocation it starts",
    ),
    # --- pods that see the processes or devices of others ---
    Case("host_pid", "hostPID: true", _LIMITED, _SHARE),
    Case(
        "a_shared_process_namespace",
        "shareProcessNamespace: true, two containers with grants",
        "gives each its own share",
        "two shares at the same time",
    ),
    Case(
        "privileged_with_a_grant",
        "privileged: true, with a grant",
        _REFUSES,
        "`securityContext.privileged: invalid value true: must be false in a container with a share"
        " of a GPU`",
    ),
    Case(
        "privileged_without_a_grant",
        "privileged: true, without a grant",
        "nothing, because node agents and drivers are privileged",
        "every device of the host, GPUs too; admission decides which users may write such pods",
    ),
    Case(
        "a_capability_that_loosens_the_limit",
        "capabilities with which a container can remove its limit: SYS_ADMIN (so ALL, and"
        " privileged without the host's devices), SYS_MODULE, SYS_RAWIO, DAC_READ_SEARCH, with"
        " hostPID SYS_PTRACE; with a grant",
        _STOPS,
        "`securityContext.capabilities: invalid value SYS_ADMIN: must not be set ... it lets the"
        " container unmount the files of its limit`; without a grant it runs, and has no GPU",
    ),
    Case(
        "a_capability_that_the_operator_allows",
        "the same, under `--allow-capability`",
        _LIMITED,
        "its share; the container can remove its own limit and those of containers whose processes"
        " are visible to it",
    ),
    Case(
        "a_neighbour_with_a_capability_that_sees_its_processes",
        "the same capabilities, or privileged: true, without a grant, in a pod that has one, where"
        " the others' processes are visible to the container: shareProcessNamespace, hostPID,"
        " kubectl debug with a target",
        "starts it, with an event and a log line, unless `--allow-capability` names them",
        "no GPU; event `LimitNotEnforceable`: it can undo the limits of the pod's other containers",
    ),
    Case(
        "a_user_namespace",
        "hostUsers: false (the runtime needs runc 1.2 or later; with an older one, as on a machine"
        " of Debian 12, the test expects the runtime's error)",
        _LIMITED,
        "its share; with an older runc: idmap mounts not supported",
    ),
    Case(
        "a_sandboxed_runtime",
        "a runtimeClassName whose handler is not the default, runc, crun, nvidia, or one that"
        " `--runtime-handler` names: kata, gVisor",
        _REFUSES,
        "`runtimeClassName: invalid value 'kata': must be the default, runc, crun, nvidia`",
    ),
    # --- what the node must be ---
    Case(
        "a_gpu_that_another_device_plugin_gave_to_a_pod",
        "a share of a GPU that NVIDIA's device plugin has given to a pod; a share of another"
        " GPU of the node starts",
        _REFUSES,
        "`GPU of the share: invalid value GPU-...: must be a shared GPU; it is assigned whole"
        " (nvidia.com/gpu) to ...`",
    ),
    Case(
        "a_node_that_nvidias_dra_driver_serves",
        "a share of any GPU of a node that NVIDIA's DRA driver serves",
        _REFUSES,
        "`must be a GPU that only gpuslice allocates, but NVIDIA's DRA driver serves this node`",
    ),
    Case(
        "labels_that_keep_containers_from_their_limit",
        "SELinux labels containers, and its policy does not let them use the agent's files",
        _REFUSES,
        "`SELinux does not let ...container_t... a container that cannot use the agent's files"
        " runs without its limit`",
    ),
    Case(
        "labels_that_let_containers_use_their_limit",
        "SELinux labels containers, and its policy has the type `container_file_t`",
        "mounts the files with that label; " + _LIMITED,
        _SHARE,
    ),
    # --- variables of image and pod ---
    Case(
        "visible_devices_of_an_image",
        "`NVIDIA_VISIBLE_DEVICES=all` in the image",
        "overwrites it: with the granted GPU's UUID (`void` under NVIDIA's runtime), or `void`",
        "its share, or no GPU",
    ),
    Case(
        "visible_devices_of_a_pod",
        "`NVIDIA_VISIBLE_DEVICES` naming a GPU, in the pod or by a device plugin, with a grant",
        "overwrites it with the granted GPU's UUID",
        _SHARE,
    ),
    Case(
        "visible_devices_that_name_gpus_without_a_grant",
        "the same without a grant, in a pod that has one",
        "sets `NVIDIA_VISIBLE_DEVICES=void`, with an event",
        "no GPU; event `WithoutGPU`",
    ),
    Case(
        "ld_preload_in_the_environment",
        "`LD_PRELOAD`, in the pod, in the image, or set later by a program: empty, or a library",
        "leaves it, because it does not load the limit",
        "its share, and its own library too",
    ),
    Case(
        "an_ld_preload_of_libc_or_the_driver",
        "an `LD_PRELOAD` that names libc or a library of the driver, in the pod or the image",
        f"{_REFUSES}, with a grant",
        "`environment LD_PRELOAD: invalid value ... must not name ... before the library that"
        " enforces the limit`",
    ),
    Case(
        "ld_audit_in_the_environment",
        "`LD_AUDIT`, in the pod or the image",
        f"{_REFUSES}, with a grant",
        "`environment LD_AUDIT: invalid value '/opt/test/libown.so': must be unset`",
    ),
    Case(
        "limits_in_the_environment",
        "`CUDA_DEVICE_MEMORY_LIMIT`, `CUDA_DEVICE_SM_LIMIT`, with and without a number, and the"
        " file of the count",
        "overwrites those that it sets; the grant takes precedence over the rest",
        _SHARE,
    ),
    Case(
        "a_core_policy_in_the_environment",
        "`GPU_CORE_UTILIZATION_POLICY=DISABLE`",
        "leaves it, because no component reads it",
        _SHARE,
    ),
    Case(
        "control_switched_off_in_the_environment",
        "`CUDA_DISABLE_CONTROL=true`",
        "leaves it, because no component reads it",
        _SHARE,
    ),
    Case(
        "a_key_twice_in_the_environment",
        "a variable that the agent sets, twice in the image's environment",
        _REFUSES,
        "`environment NVIDIA_VISIBLE_DEVICES: duplicate value (2 times`",
    ),
    # --- images ---
    Case(
        "an_image_with_a_preload_file",
        "an /etc/ld.so.preload in the image",
        "appends the libraries that it names to the agent's file, before the start",
        "its share, and its own libraries loaded",
    ),
    Case(
        "an_image_with_a_preload_file_in_a_pod_of_koordinators",
        "the same, where the pod's containers share one grant",
        "the same, in a file of the container's own",
        "its pod's share, and its own libraries loaded; not those of its neighbours",
    ),
    Case(
        "an_image_with_a_linked_preload_file",
        "an /etc/ld.so.preload in the image that is a symbolic link (it could be removed, and the"
        " agent's file with it)",
        _STOPS,
        "`image file /etc/ld.so.preload: invalid value (a symbolic link): must be a regular file`",
    ),
    Case(
        "an_image_with_a_dangling_preload_link",
        "the same, with a missing target",
        _STOPS,
        "`image file /etc/ld.so.preload: invalid value (a symbolic link)`",
    ),
    Case(
        "an_image_with_a_nix_preload_file",
        "an /etc/ld-nix.so.preload in the image, which the loader of Nix' glibc reads",
        "mounts the agent's file there too, with the image's own libraries appended",
        "both files name the library first (that loader itself is not on the test's machine)",
    ),
    Case(
        "an_image_with_files_at_the_agents_mount_points",
        "a file at /.gpuslice in the image, or a directory at /etc/ld.so.preload",
        "injects the GPU with its limit; the runtime fails the mount, which it makes before the"
        " agent can inspect the image",
        "the runtime's error at the start: `not a directory`; without a grant it runs",
    ),
    Case("an_image_without_etc", "no /etc in the image", _LIMITED, _SHARE),
    Case("a_read_only_root", "readOnlyRootFilesystem: true", _LIMITED, _SHARE),
    Case(
        "a_static_entry_point",
        "an entry point that no preload reaches: static, of musl, of 32 bits",
        "logs `LimitNotEnforceable`",
        "it starts; the dynamic programs in it have their limit",
    ),
    Case(
        "a_static_entry_point_where_it_is_refused",
        "the same, under `--unenforceable refuse`",
        _STOPS,
        "`entry point: '/usr/bin/busybox' is statically linked`",
    ),
    Case(
        "a_volume_that_a_link_leads_over_the_grant",
        "a volume that a link of the image puts over the agent's files",
        _STOPS,
        "`inside the container ... is not the file that the agent mounted`",
    ),
    Case(
        "a_mount_that_collides",
        "a volume over, in or above the agent's mounts",
        _REFUSES,
        "`mountPath: invalid value /etc: must not hide or move /etc/ld.so.preload`",
    ),
    Case(
        "a_volume_of_the_hosts_limits",
        "a hostPath over the agent's files, or above them (/run, /), with a grant",
        "refuses to create it, or, where only the mount table shows the target (a link, a subPath),"
        " to start it",
        "`mount /host...: invalid value ...: must not expose ..., which limits depend on`;"
        " without a grant it starts",
    ),
    # --- what the API server says, if the agent has one ---
    Case(
        "a_grant_that_the_api_server_has",
        "a grant that the pod at the API server has, too",
        _LIMITED,
        _SHARE,
    ),
    Case(
        "without_the_api_server_nothing_changes",
        "a grant, while the API server does not answer",
        "as without an API server: the agent uses the runtime's data and the shares of running"
        " containers",
        "its share, or `GPU-...: insufficient free capacity`",
    ),
    Case(
        "a_grant_that_the_api_server_does_not_have",
        "a grant that the pod at the API server does not have",
        "refuses to create it; where its watch has not listed the pod, the agent uses the runtime's"
        " data",
        "`GPU grant: must be that of the pod at the API server: ...`",
    ),
    Case(
        "a_grant_that_no_scheduler_wrote",
        "a grant that no scheduler wrote: the pod was created with spec.nodeName, or its"
        " annotations were changed after it was bound, or do not name their writer; also of a"
        " container that runs",
        _REFUSES + "; a running one continues, with the event `GrantRefused` and a metric",
        "`GPU grant: must be written by a scheduler: ...`",
    ),
    Case(
        "a_grant_of_a_gpu_that_was_full",
        "a grant of a GPU that is full with pods bound before it, even if its pod reached the node"
        " first",
        _REFUSES,
        "`GPU-...: insufficient free capacity when the pod was bound: ...; granted to pods bound"
        " before it: ...`",
    ),
    # --- GPUs ---
    Case(
        "a_gpu_of_another_device_plugin",
        "a GPU of another device plugin, and no grant, in a pod that has one",
        "leaves it and logs it; never sets `void`",
        "that plugin's GPU, without a limit",
    ),
    Case(
        "a_gpu_of_another_device_plugin_and_a_grant",
        "a GPU of another device plugin, and a grant",
        _REFUSES,
        "`the container already has a GPU without a limit (device /dev/nvidia`",
    ),
    Case(
        "a_gpu_of_another_nri_plugin",
        "a GPU that another NRI plugin injects into a container with a grant: by a device, a mount,"
        " a variable, a cgroup rule, or a CDI name whose spec has one (without a spec, by a name of"
        " NVIDIA's); containerd 1.7 does not validate",
        f"{_REFUSES}; one without a grant starts without a limit, and"
        " `gpuslice_containers_unlimited_total` counts it",
        "`NRI plugin 60-other injected a GPU by CDI device acme.com/thing=all into this container;"
        " a container with a GPU share must get GPUs from gpuslice only`",
    ),
    Case(
        "a_device_without_a_gpu_of_another_nri_plugin",
        "devices, mounts or variables without a GPU from another NRI plugin, by a CDI name too",
        "nothing",
        "these, and its share",
    ),
    Case(
        "a_gpu_that_is_gone",
        "a grant of a GPU that fell off the bus",
        "refuses to create it, after the next query of NVML (every 15 s while containers are"
        " created)",
        "`must be a healthy GPU: GPU is lost`; it runs once the GPU is back",
    ),
    Case(
        "an_unknown_gpu",
        "a grant of a GPU that the node never had",
        _REFUSES,
        "`invalid value GPU-absent: must be a GPU of this node (GPU-`",
    ),
    Case(
        "more_than_the_gpu",
        "a grant of more memory than the GPU has",
        _REFUSES,
        "`invalid value 43020000000 bytes of memory: must be 1 to 42949672960 (the whole GPU)`",
    ),
    # --- the lifecycle of containers ---
    Case(
        "a_pod_resized_in_place",
        "a container whose CPU or memory is resized in place",
        "nothing",
        "the same share",
    ),
    Case(
        "a_container_restored_from_a_checkpoint",
        "a container restored from a checkpoint, with the mounts of the one that was saved (the"
        " test uses such mounts: CRIU is not on the test's machine)",
        _REFUSES,
        "`mount /.gpuslice: invalid value ...: must not be another container's grant: ...;"
        " recreate it`",
    ),
    Case(
        "a_pod_restarted_in_place",
        "a pod whose sandbox is recreated, under the same UID",
        _LIMITED,
        _SHARE,
    ),
    Case(
        "a_container_restarted_100_times",
        "a container that is created and removed 100 times",
        "leaves no directory, mount or descriptor behind",
        "its share, each time",
    ),
)


def rows() -> str:
    """The table as Markdown."""
    heads = "| container | action of the agent | result for the pod's author | test |\n"
    return f"{heads}|---|---|---|---|\n" + "".join(
        f"| {case.given} | {case.does} | {case.sees} | `{case.test}` |\n" for case in CASES
    )


def renewed(document: str) -> str:
    """The document with both tables replaced by current ones, each between its two marks."""
    written, left = "", document
    for table in (failure_rows.rows(), rows()):
        before, _, rest = left.partition(BEGIN)
        _, _, left = rest.partition(END)
        written += f"{before}{BEGIN}\n{table}\n{END}"
    return written + left


def main(path: Path) -> None:
    path.write_text(renewed(path.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
