/*
 * The simulated driver's state in one process: devices, contexts, and their objects.
 *
 * One lock guards all of it. An entry point calls driver_enter, works, and returns through
 * driver_leave. It releases the lock while it waits for time to pass or for memory from the daemon,
 * and afterwards looks its handles up again. Handles are numbers, not addresses. So a handle that
 * is stale, forged or of another kind is detected. Only the daemon accounts for memory, and only
 * the GPU's engine for time.
 */
#ifndef SIMGPU_DRIVER_H
#define SIMGPU_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi/cuda_entry.h"
#include "base/arena.h"
#include "base/mark.h"
#include "client/client.h"

enum object_kind {
	OBJECT_CONTEXT = 1,
	OBJECT_STREAM,
	OBJECT_EVENT,
	OBJECT_MODULE,
	OBJECT_FUNCTION,
	OBJECT_LIBRARY,
	OBJECT_KERNEL,
	OBJECT_POOL,
	OBJECT_PHYSICAL,
	OBJECT_ARRAY,
	OBJECT_MIPMAP,
	OBJECT_EXTERNAL,
	OBJECT_GRAPH,
	OBJECT_NODE,
	OBJECT_EXEC,
	OBJECT_CAPTURE,
	OBJECT_GREEN,
	OBJECT_GREEN_VIEW, /* a green context, given as a CUcontext */
	OBJECT_RESOURCES,
};

/* The first member of each struct that a handle can name. */
struct object {
	enum object_kind kind;
	uint32_t index;
	uint32_t generation;
	uint64_t serial; /* unique in the process */
};

/* Makes an object of `bytes` bytes, all 0 but its head. */
void *object_new(enum object_kind kind, size_t bytes);
/* Returns the object of that kind that `handle` names, or NULL if there is none. */
void *object_get(const void *handle, enum object_kind kind);
/* Returns true if `handle` may have named an object of that kind that no longer exists. */
bool object_was(const void *handle, enum object_kind kind);
void *object_handle(const void *object);
void object_free(void *object);
/* Ends the handle as object_free does. The caller frees the memory. */
void object_unlink(void *object);
/* Returns the next object of a kind, or NULL. `*at` starts at 0. The returned object may be freed
 * before the next call. */
void *object_next(enum object_kind kind, uint32_t *at);

struct stream {
	struct object object;
	struct context *context;
	struct mark done; /* reached when all work submitted so far is done */
	unsigned int flags;
	unsigned int queue;	 /* of its context's; the legacy stream has 0 */
	uint64_t green;		 /* serial of its green context; 0: none */
	uint64_t owner_thread;	 /* the thread whose default stream it is; else 0 */
	struct capture *capture; /* NULL: submitted work is executed, and not recorded */
};

#define SIM_CONTEXT_LIMITS 10
/* The limits that cost memory. The first three are in bytes. */
enum { SIM_LIMIT_STACK, SIM_LIMIT_PRINTF, SIM_LIMIT_HEAP, SIM_LIMIT_DEPTH, SIM_LIMIT_LAUNCHES };
/* Whether graphics shares the context (CIG). This driver makes no such context. */
#define SIM_LIMIT_CIG_ENABLED 8

/* Memory that the driver takes for itself; id 0: none. */
struct extra {
	uint64_t id, bytes;
};

/* The version of all contexts, except those of the interface before CUDA 3.2. */
#define CONTEXT_API_VERSION 3020

struct context {
	struct object object;
	struct device *device;
	uint64_t id; /* the daemon's id of the context */
	uint32_t channel;
	unsigned int api_version;
	unsigned int attached; /* calls of cuCtxAttach minus cuCtxDetach */
	unsigned int retained; /* how often a primary context is retained; a reset keeps this */
	bool primary, alive;
	struct stream legacy;
	unsigned int streams;	     /* how many were made */
	struct shared_block *blocks; /* blocks for its small allocations */
	struct mark blocking_done, all_done;
	uint64_t limits[SIM_CONTEXT_LIMITS];
	void *host;		       /* host memory that a context takes; NULL: none */
	uint64_t launched_local_bytes; /* per thread: the most that a launched function needs */
	struct extra beyond[SIM_LIMIT_LAUNCHES + 1]; /* memory for limits above the defaults */
};

/* Work in a green context is work in the device's primary context. */
struct green_view {
	struct object object;
	struct context *primary;
};

struct device {
	struct sim_link *link;
	const struct sim_gpu *gpu;
	int ordinal;
	bool used; /* a context was opened on it */
	struct context *primary;
	struct arena arena; /* device addresses */
	struct arena low;   /* addresses for the 32-bit interface before CUDA 3.2 */
	struct pool *default_pool, *current_pool; /* NULL before the first use */
	struct graph_pool {
		struct graph_block *unused; /* blocks that the next graph can use */
		uint64_t used_bytes, reserved_bytes;
	} graphs;
};

struct driver {
	int devices;
	struct device device[SIM_MAX_GPUS];
};

extern struct driver driver;

/* Sets up the driver in this process, once. `find_devices` fills `driver`. Called with the lock. */
CUresult driver_begin(CUresult (*find_devices)(void));
/* Returns true if cuInit has succeeded in this process itself. */
bool driver_is_up(void);
/* Returns true if cuInit had succeeded in the parent before it forked this process. */
bool driver_is_child(void);

/* Takes the lock. If this process has no driver, returns the reason without the lock. */
CUresult driver_enter(void);
void driver_lock(void);
void driver_unlock(void);

/* Releases the lock and returns `result`. */
static inline CUresult driver_leave(CUresult result)
{
	driver_unlock();
	return result;
}

/* Returns from the calling function with the result of `call`, unless this is CUDA_SUCCESS. */
#define TRY(call)                                                                                  \
	do {                                                                                       \
		CUresult tried = (call);                                                           \
		if (tried != CUDA_SUCCESS)                                                         \
			return tried;                                                              \
	} while (0)
/* Like TRY, but releases the lock before it returns. */
#define TRY_LOCKED(call)                                                                           \
	do {                                                                                       \
		CUresult tried = (call);                                                           \
		if (tried != CUDA_SUCCESS)                                                         \
			return driver_leave(tried);                                                \
	} while (0)

/* Returns true if a fault is injected into the function; `*result` is then what it must return. */
bool fault_strikes(const char *name, CUresult *result);

/* Returns the CUDA code for a status of the daemon. */
CUresult driver_result(enum sim_status status);

CUresult device_get(CUdevice ordinal, struct device **device);
/* Returns the program's device with that UUID, or NULL. */
struct device *device_of_uuid(const uint8_t *uuid);
/* Reserves the device's address range, if it is not reserved yet. */
bool device_addresses(struct device *device);
/*
 * device_take allocates memory of the GPU for a context (the daemon's id; 0: the process), and
 * device_give_back frees it. device_export returns a token, by which device_import takes the same
 * memory in another process. Called without the lock.
 */
CUresult device_take(struct device *device, uint64_t context, uint64_t bytes, uint64_t *id);
CUresult device_give_back(struct device *device, uint64_t id);
CUresult device_export(struct device *device, uint64_t id, uint64_t *token);
CUresult device_import(struct device *device, uint64_t context, uint64_t token, uint64_t *id);
/* Keeps the memory allocated while any process has `fd` open. This has no effect if the daemon
 * cannot see this process. */
CUresult device_keep(struct device *device, uint64_t id, int fd);

/* Returns the array, with space for row number `count`. It is enlarged at powers of two. */
static inline void *grow(void *rows, size_t count, size_t row_bytes)
{
	return count & (count - 1) ? rows
				   : must(realloc(rows, (count ? 2 * count : 1) * row_bytes));
}

/* Returns the time of CLOCK_MONOTONIC. */
uint64_t now_ns(void);
/* Sleeps until `instant_ns` of CLOCK_MONOTONIC. The caller does not hold the lock. */
void wait_until_ns(uint64_t instant_ns);

/* Finds the calling thread's current context. Fails if this context has been destroyed. */
CUresult context_current(struct context **context);
CUresult context_get(CUcontext handle, struct context **context);
/* Takes the lock and finds the context of `handle`; NULL: the current one. */
CUresult context_enter(CUcontext handle, struct context **context);
/* Returns the serial of the calling thread's current green context; 0: none. */
uint64_t green_current(void);
bool context_flags_are_good(unsigned int flags);
CUresult context_open(struct device *device, struct context *context);
/* Destroys the context's objects and memory, but not the object of the context itself. */
CUresult context_close(struct context *context);
/* Waits for all work of the context. The caller holds the lock, and this releases it. */
CUresult context_drain(struct context *context);
/* Returns CUDA_SUCCESS if the GPU still answers. */
CUresult device_alive(struct sim_link *link);

/* Finds the stream that `handle` means to the calling thread with its current context. */
CUresult stream_get(CUstream handle, struct stream **stream);
/* Makes a stream of the context, and of a green context (its serial; 0: none). */
struct stream *stream_new(struct context *context, unsigned int flags, uint64_t green);
/* Returns the serial of the stream's green context. A default stream is that of the current one. */
uint64_t stream_green(const struct stream *stream);
/* Like stream_get, but calls driver_enter first, and driver_leave if it fails. */
CUresult stream_enter(CUstream handle, struct stream **stream);
/*
 * Stores the mark of the stream's work so far, and the stream's device, for a call that is
 * forbidden on a capturing stream. The caller does not hold the lock.
 */
CUresult stream_pending(CUstream handle, struct mark *pending, struct device **device);
/* Returns a number that no other stream of the process has. */
uint64_t stream_serial(const struct stream *stream);
/* Returns the mark that work submitted to the stream now must wait for. */
struct mark stream_ready(const struct stream *stream);
/* Makes the stream's later work wait for `mark`, too. */
void stream_raise(struct stream *stream, const struct mark *mark);
/*
 * Submits an item that occupies the GPU for `duration_ns`. Returns CUDA_ERROR_NOT_READY if the
 * stream's queue is full; space is free once `*room` is reached.
 */
CUresult stream_occupy(struct stream *stream, uint64_t duration_ns, struct mark *room);
void streams_forget(struct context *context);
/* While enabled, stream 0 is the calling thread's own stream. Returns the previous setting. */
bool stream_per_thread(bool enable);

/* Sets the default limits. Their memory is included in a new context. */
void overhead_begin(struct context *context);
/* Allocates or frees the memory that the limit costs. If that fails, nothing changes. */
CUresult overhead_set_limit(struct context *context, int limit, uint64_t value);
/*
 * Returns CUDA_SUCCESS if no capture forbids an unsafe call to the calling thread. Otherwise
 * invalidates each capture that forbids it, and returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
 */
CUresult capture_allows(void);
/* Like capture_allows, for a call that is always forbidden on a capturing stream. */
CUresult capture_allows_on(const struct stream *stream);
int capture_mode_exchange(int mode);

void events_forget(struct context *context);
/* Stores the instants of events before the engine forgets them. Call it every 1,024 items. */
void events_settle(const struct context *context);
void modules_forget(struct context *context);

/* Finds the base and size of the pinned host memory that contains `address`. */
bool host_find(const void *address, void **base, size_t *bytes);
/* Returns the allocation on any device that contains `address`, or NULL. */
struct range *memory_find(uint64_t address, struct device **device);
/* Ends an allocation. Returns the daemon's id of memory to free; 0: its block is still used. */
uint64_t memory_end(struct device *device, struct range *range);

#endif
