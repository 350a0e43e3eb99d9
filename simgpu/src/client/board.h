/*
 * The memory that the daemon shares with every client of a GPU: faults, and the engine's state.
 *
 * The daemon makes this memory and passes its descriptor with the reply to SIM_HELLO. Clients map
 * it and change the engine under `lock` (channel.h). The daemon takes no lock. It writes `armed`,
 * `lost`, `recovery_action`, `ended_ns`, a free channel, and `lock` once its holder has exited. Its
 * side is simgpu/board.py. A test compares the two.
 */
#ifndef SIMGPU_BOARD_H
#define SIMGPU_BOARD_H

#include <stdint.h>

#define SIM_CHANNELS  256  /* the most contexts on a GPU */
#define SIM_QUEUES    8	   /* of a context: CUDA_DEVICE_MAX_CONNECTIONS of a real driver */
#define SIM_PENDING   1024 /* the most unfinished items of a queue, as in a real channel */
#define SIM_HISTORY   4096 /* the latest items of a queue, whose end is still known */
#define SIM_BUCKETS   64
#define SIM_BUCKET_NS 16777216 /* 64 buckets are slightly more than a second */

/* How long the GPU was busy in one interval of SIM_BUCKET_NS. */
struct sim_busy {
	uint32_t bucket; /* number of the interval: instant / SIM_BUCKET_NS */
	uint32_t busy_ns;
};

/* Instants on the context's own clock, `ran_ns`. An item also begins no earlier than an instant. */
struct sim_item {
	uint64_t start_ns, end_ns;
	uint64_t earliest_ns;
};

struct sim_queue {
	struct sim_item items[SIM_PENDING]; /* by number */
	uint64_t finished_ns[SIM_HISTORY];  /* by number */
};

/*
 * A context's submitted items, in queues. A queue's items run in order and are numbered from 1.
 * When another context uses the channel, the numbers continue, so each number of the ended context
 * remains completed.
 */
struct sim_channel {
	uint64_t ended_ns; /* when its context ended; 0: not yet */
	uint64_t ran_ns;   /* the context's clock, which runs while an item of the context runs */
	uint64_t submitted[SIM_QUEUES], completed[SIM_QUEUES];
	struct sim_busy busy[SIM_BUCKETS];
	struct sim_queue queues[SIM_QUEUES];
};

struct sim_board {
	uint32_t armed;	  /* faults of driver functions; if 0, no client needs to send SIM_FAULT */
	uint32_t lost;	  /* the GPU has fallen off the bus, or the daemon has exited */
	uint32_t lock;	  /* 0: free; else the holder's connection, with SIM_LOCK_WAITERS or not */
	uint32_t current; /* the channel that runs on the GPU */
	uint32_t recovery_action; /* for NVML: nvmlDeviceGpuRecoveryAction_t */
	uint32_t reserved;
	uint64_t launch_default_ns, time_slice_ns;
	uint64_t copy_bytes_per_s;   /* 0: copies take no time */
	uint64_t context_host_bytes; /* host memory that a context takes in its process */
	uint64_t now_ns;	     /* the instant that the engine has reached */
	uint64_t slice_end_ns;	     /* when the current channel's time slice ends */
	uint64_t pending[4];	     /* one bit per channel that may have items */
	struct sim_busy busy[SIM_BUCKETS];
};

#define SIM_LOCK_WAITERS 0x80000000

struct sim_shared {
	struct sim_board board;
	struct sim_channel channels[SIM_CHANNELS];
};

#endif
