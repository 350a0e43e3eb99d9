"""The policy by kind of container: the agent's action, the visible result, and the test.

Data only; nri_plugin/policy/checks.py decides. A row's test is over a real containerd where the
runtime, the kernel or a program in the container decides, too; else it is the policy's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.node.table import Row

_LIMITED: Final = "injects the GPU with its limit"
_REFUSES: Final = "refuses to create it"
_STOPS: Final = "refuses to start it"
_SHARE: Final = "its share"
_UNCHANGED: Final = "test_a_pod_without_a_share_starts_and_stays_unchanged"

CONTAINER_ROWS: Final[Sequence[Row]] = (
    # --- which containers hold a GPU ---
    Row(
        "a container with a grant; one without, in the same pod",
        f"{_LIMITED}; sets `NVIDIA_VISIBLE_DEVICES=void`",
        "its share; no GPU",
        "test_a_container_with_a_grant",
    ),
    Row(
        "an init container: with a grant, of all that the pod was allocated, and without",
        "as for any container, by its name; while it runs, another one is refused the same part",
        "its share, or no GPU; `containers.main: ... must be at most 0, the free part of the"
        " pod's allocation of 21474836480; ... granted to running containers: ...init 21474836480`",
        "test_an_init_container",
    ),
    Row(
        "two containers with grants, one of them a sidecar; also with shareProcessNamespace: true"
        " or hostPID: true",
        "gives each its own share",
        "two shares at the same time",
        "test_two_shares_of_a_pod",
    ),
    Row(
        "an ephemeral container (kubectl debug)",
        "sets `NVIDIA_VISIBLE_DEVICES=void`: its name is in no grant",
        "no GPU; in pods that Koordinator's scheduler placed, which name no containers, and may"
        " have no isolation label, the pod's own share",
        "test_an_ephemeral_container",
    ),
    Row(
        "a pod that requests no GPU, also with privileged: true, because node agents and drivers"
        " are privileged",
        "nothing",
        "its environment as the image has it; no GPU, or, privileged, every device of the host:"
        " admission decides which users may write such pods",
        _UNCHANGED,
    ),
    Row(
        "an isolation label of another provider",
        _REFUSES,
        "`label koordinator.sh/gpu-isolation-provider: invalid value 'hami': must be 'hami-core'`;"
        " without an allocation it starts",
        "test_refused[an unknown provider]",
    ),
    # --- pods that see the processes or devices of others ---
    Row(
        "privileged: true, with a grant",
        _REFUSES,
        "`securityContext.privileged: invalid value true: must be false in a container with a share"
        " of a GPU`",
        "test_refused[every device]",
    ),
    Row(
        "capabilities with which a container can remove its limit: SYS_ADMIN (so ALL, and"
        " privileged without the host's devices), SYS_MODULE, SYS_RAWIO, DAC_READ_SEARCH, with"
        " hostPID SYS_PTRACE; with a grant",
        _STOPS,
        "`securityContext.capabilities: invalid value SYS_ADMIN: must not be set ... it lets the"
        " container unmount the files of its limit`; without a grant it runs, and has no GPU",
        "test_a_capability_that_loosens_the_limit",
    ),
    Row(
        "the same, under `--allow-capability`",
        _LIMITED,
        "its share; the container can remove its own limit and those of containers whose processes"
        " are visible to it",
        "test_a_capability_that_the_operator_allows",
    ),
    Row(
        "the same capabilities, or privileged: true, without a grant, in a pod that has one, where"
        " the others' processes are visible to the container: shareProcessNamespace, hostPID,"
        " kubectl debug with a target",
        "starts it, with an event and a log line, unless `--allow-capability` names them",
        "no GPU; event `LimitNotEnforceable`: it can undo the limits of the pod's other containers",
        "test_a_neighbour_with_a_capability_that_sees_its_processes",
    ),
    Row(
        "hostUsers: false (the runtime needs runc 1.2 or later; with an older one, as on a machine"
        " of Debian 12, the test expects the runtime's error)",
        _LIMITED,
        "its share; with an older runc: idmap mounts not supported",
        "test_a_user_namespace",
    ),
    Row(
        "a runtimeClassName whose handler is not the default, runc, crun, nvidia, or one that"
        " `--runtime-handler` names: kata, gVisor",
        _REFUSES,
        "`runtimeClassName: invalid value 'gvisor': must be the default, runc, crun, nvidia`",
        "test_refused[another kernel]",
    ),
    # --- what the node must be ---
    Row(
        "a share of a GPU that NVIDIA's device plugin has given to a pod; a share of another"
        " GPU of the node starts",
        _REFUSES,
        "`GPU of the share: invalid value GPU-...: must be a shared GPU; it is assigned whole"
        " (nvidia.com/gpu) to ...`",
        "test_a_gpu_that_another_device_plugin_gave_to_a_pod",
    ),
    Row(
        "a share of any GPU of a node that NVIDIA's DRA driver serves",
        _REFUSES,
        "`must be a GPU that only gpuslice allocates, but NVIDIA's DRA driver serves this node`",
        "test_beside_a_dra_driver_no_gpu_has_a_share",
    ),
    Row(
        "SELinux labels containers, and its policy does not let them use the agent's files; with"
        " the type `container_file_t` in the policy the files have that label",
        f"{_REFUSES}; {_LIMITED}",
        "`SELinux does not let ...container_t... a container that cannot use the agent's files"
        " runs without its limit`; its share",
        "test_a_share_is_refused_where_selinux_hides_the_files_of_its_limit",
    ),
    # --- variables of image and pod ---
    Row(
        "`NVIDIA_VISIBLE_DEVICES` in the image, in the pod or by a device plugin",
        "overwrites it with the granted GPU's UUID (`void` under NVIDIA's runtime); with `void` in"
        " a container without a grant beside it, with an event where it names GPUs",
        "its share; no GPU, and event `WithoutGPU`",
        "test_variables_that_name_gpus",
    ),
    Row(
        "`LD_PRELOAD`, in the pod, in the image, or set later by a program: empty, or a library",
        "leaves it, because it does not load the limit",
        "its share, and its own library too",
        "test_ld_preload_in_the_environment",
    ),
    Row(
        "an `LD_PRELOAD` that names libc or a library of the driver, in the pod or the image",
        f"{_REFUSES}, with a grant",
        "`environment LD_PRELOAD: invalid value ... must not name ... before the library that"
        " enforces the limit`",
        "test_refused[libc before ours, after a space]",
    ),
    Row(
        "`LD_AUDIT`, in the pod or the image",
        f"{_REFUSES}, with a grant",
        "`environment LD_AUDIT: invalid value '/tmp/audit.so': must be unset`",
        "test_refused[an auditor, at the second mention]",
    ),
    Row(
        "`CUDA_DEVICE_MEMORY_LIMIT`, `CUDA_DEVICE_SM_LIMIT`, with and without a number, and the"
        " file of the count; `GPU_CORE_UTILIZATION_POLICY`, `CUDA_DISABLE_CONTROL`",
        "overwrites those that it sets; the grant takes precedence over the rest",
        _SHARE,
        "test_variables_of_a_limit",
    ),
    Row(
        "a variable that the agent sets, twice in the image's environment",
        _REFUSES,
        "`environment NVIDIA_VISIBLE_DEVICES: duplicate value (2 times`",
        "test_refused[a variable twice]",
    ),
    # --- images and volumes ---
    Row(
        "an /etc/ld.so.preload in the image, or an /etc/ld-nix.so.preload, which the loader of Nix'"
        " glibc reads",
        "appends the libraries that it names to the agent's file there, before the start",
        "its share, and its own libraries loaded",
        "test_an_image_with_a_preload_file",
    ),
    Row(
        "the same, where the pod's containers share one grant",
        "the same, in a file of the container's own",
        "its pod's share, and its own libraries loaded; not those of its neighbours",
        "test_an_image_with_a_preload_file_in_a_pod_of_koordinators",
    ),
    Row(
        "an /etc/ld.so.preload in the image that is a symbolic link (it could be removed, and the"
        " agent's file with it), also with a missing target",
        _STOPS,
        "`image file /etc/ld.so.preload: invalid value (a symbolic link): must be a regular file`",
        "test_an_image_with_a_linked_preload_file",
    ),
    Row(
        "a file at /.gpuslice in the image, or a directory at /etc/ld.so.preload",
        "injects the GPU with its limit; the runtime fails the mount, which it makes before the"
        " agent can inspect the image",
        "the runtime's error at the start: `not a directory`; without a grant it runs",
        "test_an_image_with_files_at_the_agents_mount_points",
    ),
    Row("no /etc in the image", _LIMITED, _SHARE, "test_an_image_without_etc"),
    Row(
        "readOnlyRootFilesystem: true",
        _LIMITED,
        _SHARE,
        "test_a_user_without_rights_on_a_root_that_is_read_only_is_limited",
    ),
    Row(
        "an entry point that no preload reaches: static, of musl, of 32 bits",
        "logs and counts `LimitNotEnforceable`; refuses to start it under `--unenforceable refuse`",
        "it starts, and the dynamic programs in it have their limit; `entry point: 'busybox' is"
        " statically linked`",
        "test_a_static_entry_point",
    ),
    Row(
        "a volume that a link of the image puts over the agent's files",
        _STOPS,
        "`inside the container ... is not the file that the agent mounted`",
        "test_a_volume_that_a_link_leads_over_the_grant",
    ),
    Row(
        "a volume over, in or above the agent's mounts",
        _REFUSES,
        "`mountPath: invalid value /etc: must not hide or move /etc/ld.so.preload`",
        "test_a_volume_in_our_way_is_refused[/etc]",
    ),
    Row(
        "a hostPath over the agent's files, or above them (/run, /), with a grant",
        "refuses to create it, or, where only the mount table shows the target (a link, a subPath),"
        " to start it",
        "`mount /host...: invalid value ...: must not expose ..., which limits depend on`;"
        " without a grant it starts",
        "test_a_volume_of_the_hosts_limits",
    ),
    # --- what the API server says, if the agent has one ---
    Row(
        "a grant that the pod at the API server does not have",
        "refuses to create it; where its watch has not listed the pod, the agent uses the runtime's"
        " data",
        "`GPU grant: must be that of the pod at the API server: ...`",
        "test_the_grant_is_that_of_the_pod_at_the_api_server",
    ),
    Row(
        "a grant, while the API server does not answer",
        "as without an API server: the agent uses the runtime's data and the shares of running"
        " containers",
        "its share, or `GPU-...: insufficient free capacity`",
        "test_without_the_api_server_nothing_changes",
    ),
    Row(
        "a grant that no scheduler wrote: the pod was created with spec.nodeName, or its"
        " annotations were changed after it was bound, or do not name their writer; also of a"
        " container that runs",
        _REFUSES + "; a running one continues, with the event `GrantRefused` and a metric",
        "`GPU grant: must be written by a scheduler: ...`",
        "test_a_grant_that_no_scheduler_wrote_stays_foreign_until_deletion",
    ),
    Row(
        "a grant of a GPU that is full with pods bound before it, even if its pod reached the node"
        " first",
        _REFUSES,
        "`GPU-...: insufficient free capacity when the pod was bound: ...; granted to pods bound"
        " before it: ...`",
        "test_pods_fit_in_the_order_of_binding",
    ),
    # --- GPUs ---
    Row(
        "a GPU of another device plugin, and no grant, in a pod that has one",
        "leaves it and logs it; never sets `void`",
        "that plugin's GPU, without a limit",
        "test_a_gpu_of_another_device_plugin",
    ),
    Row(
        "a GPU of another device plugin, and a grant",
        _REFUSES,
        "`the container already has a GPU without a limit (device /dev/nvidia`",
        "test_refused[a GPU's node]",
    ),
    Row(
        "a GPU that another NRI plugin injects into a container with a grant: by a device, a mount,"
        " a variable, a cgroup rule, or a CDI name whose spec has one (without a spec, by a name of"
        " NVIDIA's); containerd before 2.2 shows devices only, and the start is refused",
        f"{_REFUSES}; one without a grant starts without a limit, and"
        " `gpuslice_containers_unlimited_total` counts it",
        "`NRI plugin 60-other injected a GPU by CDI device acme.com/thing=all into this container;"
        " a container with a GPU share must get GPUs from gpuslice only`",
        "test_a_gpu_of_another_nri_plugin",
    ),
    Row(
        "devices, mounts or variables without a GPU from another NRI plugin, by a CDI name too",
        "nothing",
        "these, and its share",
        "test_changes_that_bring_no_gpu_are_accepted",
    ),
    Row(
        "a grant of a GPU that the node never had",
        _REFUSES,
        "`invalid value GPU-nowhere: must be a GPU of this node (GPU-`",
        "test_refused[a GPU unknown by id]",
    ),
    # --- the lifecycle of containers ---
    Row(
        "a container whose CPU or memory is resized in place; a pod whose sandbox is recreated"
        " under the same UID",
        "nothing; injects the GPU with its limit",
        "the same share",
        "test_a_pod_changed_in_place",
    ),
    Row(
        "a container restored from a checkpoint, with the mounts of the one that was saved",
        _REFUSES,
        "`mount /x: invalid value ...: must not be another container's grant: ...; recreate it`",
        "test_refused[another container's files]",
    ),
    Row(
        "a container that is created and removed 100 times",
        "leaves no directory, mount or descriptor behind",
        "its share, each time",
        "test_a_container_restarted_100_times",
    ),
)
