/*
 * The memory that the daemon shares with every client of a GPU: faults, and the engine's state.
 *
 * The daemon makes it and passes its descriptor with the reply to SIM_HELLO; clients map it and
 * change the engine under `lock` (channel.h). The daemon takes no lock: it writes `armed`, `lost`,
 * `recovery_action`, `ended_ns`, a free channel, and `lock` once its holder has exited. Its side is
 * simgpu/board.py; a test compares the two.
 */
#ifndef SIMGPU_BOARD_H
#define SIMGPU_BOARD_H

#include <stdint.h>

#define SIM_CHANNELS  256  /* contexts of a GPU */
#define SIM_PENDING   1024 /* items of a context that are not done: as in a real channel */
#define SIM_HISTORY   4096 /* latest items whose instants of completion are kept */
#define SIM_BUCKETS   64
#define SIM_BUCKET_NS 16777216 /* 64 of them are a bit more than a second */

/* How long the GPU was busy in one bucket of time. */
struct sim_busy {
	uint32_t bucket; /* its number: instant / SIM_BUCKET_NS */
	uint32_t busy_ns;
};

struct sim_item {
	uint64_t duration_ns;
	uint64_t earliest_ns; /* it does not begin before */
	uint64_t total_ns;    /* duration of this item and all before it */
};

/*
 * A context's submitted items, in order. They have numbers, from 1 on, which never begin again:
 * a number of an ended context stays reached in a channel that another context uses.
 */
struct sim_channel {
	uint64_t ended_ns; /* its context ended then; 0: it has not */
	uint64_t submitted, completed;
	uint64_t progress_ns; /* of the first item that is not completed */
	struct sim_busy busy[SIM_BUCKETS];
	struct sim_item items[SIM_PENDING]; /* by number */
	uint64_t finished_ns[SIM_HISTORY];  /* by number */
};

struct sim_board {
	uint32_t armed;	  /* faults by a call's name: only then is SIM_FAULT worth a request */
	uint32_t lost;	  /* the GPU has fallen off the bus, or the daemon has exited */
	uint32_t lock;	  /* 0, or the connection that holds it and SIM_LOCK_WAITERS */
	uint32_t current; /* channel that has the GPU */
	uint32_t recovery_action; /* that NVML reports: nvmlDeviceGpuRecoveryAction_t */
	uint32_t reserved;
	uint64_t launch_default_ns, time_slice_ns;
	uint64_t copy_bytes_per_s;   /* 0: copies take no time */
	uint64_t context_host_bytes; /* of the process's own memory, for each context */
	uint64_t now_ns;	     /* simulated until then */
	uint64_t slice_end_ns;	     /* of the current channel */
	uint64_t pending[4];	     /* one bit per channel: it may have items */
	struct sim_busy busy[SIM_BUCKETS];
};

#define SIM_LOCK_WAITERS 0x80000000

struct sim_shared {
	struct sim_board board;
	struct sim_channel channels[SIM_CHANNELS];
};

#endif
