/*
 * The simulated driver's state in one process: devices, contexts, and their objects.
 *
 * One lock guards all of it. An entry point calls driver_enter, works, and returns through
 * driver_leave; it releases the lock while it waits for time to pass or requests memory from the
 * daemon, and then looks its handles up again. Handles are numbers, never
 * addresses: a stale or forged one, or one of another kind, is detected. Memory belongs to the
 * daemon, time to the GPU's engine: nothing is counted here.
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
	OBJECT_GREEN_VIEW, /* a green context as a CUcontext */
	OBJECT_RESOURCES,
};

/* First member of everything that a handle names. */
struct object {
	enum object_kind kind;
	uint32_t index;
	uint32_t generation;
	uint64_t serial; /* never used twice in a process */
};

/* A new object of `bytes` zeroed bytes. */
void *object_new(enum object_kind kind, size_t bytes);
/* The object that `handle` names, or NULL if it names none, or none of that kind. */
void *object_get(const void *handle, enum object_kind kind);
/* True if `handle` may have named one that no longer exists. */
bool object_was(const void *handle, enum object_kind kind);
void *object_handle(const void *object);
void object_free(void *object);
/* As object_free, but the memory remains: the caller frees it. */
void object_unlink(void *object);
/* Iterates over the objects of a kind; `*at` starts at 0. The returned object may be freed in the
 * loop. */
void *object_next(enum object_kind kind, uint32_t *at);

struct stream {
	struct object object;
	struct context *context;
	struct mark done; /* all work submitted so far */
	unsigned int flags;
	uint64_t owner_thread;	 /* of a per-thread default stream; else 0 */
	struct capture *capture; /* NULL: submitted work is executed, not recorded */
};

#define SIM_CONTEXT_LIMITS 10
/* Those that cost memory; the first three are in bytes. */
enum { SIM_LIMIT_STACK, SIM_LIMIT_PRINTF, SIM_LIMIT_HEAP, SIM_LIMIT_DEPTH, SIM_LIMIT_LAUNCHES };
/* Shared with graphics (CIG): no context of this driver is, and none can be created so. */
#define SIM_LIMIT_CIG_ENABLED 8

/* Memory that the driver takes for itself; no id: none. */
struct extra {
	uint64_t id, bytes;
};

/* Every context has it but those of the interface before CUDA 3.2. */
#define CONTEXT_API_VERSION 3020

struct context {
	struct object object;
	struct device *device;
	uint64_t id; /* the daemon's */
	uint32_t channel;
	unsigned int api_version;
	unsigned int attached; /* retains beyond its creation */
	unsigned int retained; /* primary context: retains; a reset leaves them as they are */
	bool primary, alive;
	struct stream legacy;
	struct shared_block *blocks; /* that its small allocations share */
	struct mark blocking_done, all_done;
	uint64_t limits[SIM_CONTEXT_LIMITS];
	void *host;		       /* the host's memory that it takes; NULL: none */
	uint64_t launched_local_bytes; /* per thread: the maximum that a launched function needs */
	struct extra beyond[SIM_LIMIT_LAUNCHES + 1]; /* what the limits cost */
};

/* Operations in it are operations in the primary context. */
struct green_view {
	struct object object;
	struct context *primary;
};

struct device {
	struct sim_link *link;
	const struct sim_gpu *gpu;
	int ordinal;
	bool used; /* has had a context */
	struct context *primary;
	struct arena arena; /* device addresses */
	struct arena low;   /* those that fit the 32-bit interface of before CUDA 3.2 */
	struct pool *default_pool, *current_pool; /* NULL until first use */
	struct graph_pool {
		struct graph_block *unused; /* kept for the next graph */
		uint64_t used_bytes, reserved_bytes;
	} graphs;
};

struct driver {
	int devices;
	struct device device[SIM_MAX_GPUS];
};

extern struct driver driver;

/* With the lock: sets up the driver in this process, once; `find_devices` fills `driver`. */
CUresult driver_begin(CUresult (*find_devices)(void));
/* True if cuInit has succeeded in this very process. */
bool driver_is_up(void);
/* True if it had succeeded in the parent process before fork. */
bool driver_is_child(void);

/* Takes the lock, or returns why there is no driver in this process (then the lock is not
 * taken). */
CUresult driver_enter(void);
void driver_lock(void);
void driver_unlock(void);

/* Releases the lock and returns `result`. */
static inline CUresult driver_leave(CUresult result)
{
	driver_unlock();
	return result;
}

/* Returns from the calling function with the result of `call` unless that is CUDA_SUCCESS. */
#define TRY(call)                                                                                  \
	do {                                                                                       \
		CUresult tried = (call);                                                           \
		if (tried != CUDA_SUCCESS)                                                         \
			return tried;                                                              \
	} while (0)
/* The same, and releases the lock first. */
#define TRY_LOCKED(call)                                                                           \
	do {                                                                                       \
		CUresult tried = (call);                                                           \
		if (tried != CUDA_SUCCESS)                                                         \
			return driver_leave(tried);                                                \
	} while (0)

/* True: a fault of that name applies, and `*result` is what the call returns. */
bool fault_strikes(const char *name, CUresult *result);

/* The CUDA code for the daemon's status. */
CUresult driver_result(enum sim_status status);

CUresult device_get(CUdevice ordinal, struct device **device);
/* NULL: it is not the program's. */
struct device *device_of_uuid(const uint8_t *uuid);
/* Reserves the device's addresses, once. */
bool device_addresses(struct device *device);
/*
 * Request `bytes` of the GPU from the daemon, for a context (its id there) or, with 0, for the
 * process; free them; name them for another process, and take what another process named. Call them
 * without the lock.
 */
CUresult device_take(struct device *device, uint64_t context, uint64_t bytes, uint64_t *id);
CUresult device_give_back(struct device *device, uint64_t id);
CUresult device_export(struct device *device, uint64_t id, uint64_t *token);
CUresult device_import(struct device *device, uint64_t context, uint64_t token, uint64_t *id);
/* The memory exists as long as a process has that descriptor open, too; not if the daemon cannot
 * see this process. */
CUresult device_keep(struct device *device, uint64_t id, int fd);

/* The array with space for one row more than `count`: copied at powers of two. */
static inline void *grow(void *rows, size_t count, size_t row_bytes)
{
	return count & (count - 1) ? rows
				   : must(realloc(rows, (count ? 2 * count : 1) * row_bytes));
}

/* CLOCK_MONOTONIC. */
uint64_t now_ns(void);
/* Sleeps until then, without the lock. */
void wait_until_ns(uint64_t instant_ns);

/* The calling thread's current context, not destroyed. */
CUresult context_current(struct context **context);
CUresult context_get(CUcontext handle, struct context **context);
/* Takes the lock with `handle`'s context, or with the current one if it is NULL. */
CUresult context_enter(CUcontext handle, struct context **context);
bool context_flags_are_good(unsigned int flags);
CUresult context_open(struct device *device, struct context *context);
/* Destroys the context's objects and its memory; the context object itself remains. */
CUresult context_close(struct context *context);
/* Waits for all work of the context. Called with the lock; returns without it. */
CUresult context_drain(struct context *context);
/* True if the GPU still answers. */
CUresult device_alive(struct sim_link *link);

/* The stream that a handle means for the calling thread and its current context. */
CUresult stream_get(CUstream handle, struct stream **stream);
/* The same after driver_enter; if it fails, driver_leave has been called. */
CUresult stream_enter(CUstream handle, struct stream **stream);
/*
 * What the stream's work so far waits for, and its device; for a call that no capture allows.
 * Called and returns without the lock.
 */
CUresult stream_pending(CUstream handle, struct mark *pending, struct device **device);
/* Distinguishes a stream from all others of the process. */
uint64_t stream_serial(const struct stream *stream);
/* All that work submitted to the stream now must wait for. */
struct mark stream_ready(const struct stream *stream);
/* The stream is behind that mark. */
void stream_raise(struct stream *stream, const struct mark *mark);
/*
 * The GPU is busy for so long once it reaches this item of the stream. CUDA_ERROR_NOT_READY: the
 * context's channel is full until `*room` is reached.
 */
CUresult stream_occupy(struct stream *stream, uint64_t duration_ns, struct mark *room);
void streams_forget(struct context *context);
/* While true, stream 0 means the thread's own stream to the calling thread; returns the previous
 * value. */
bool stream_per_thread(bool enable);

/* A new context's limits, and no memory beyond what it includes. */
void overhead_begin(struct context *context);
/* Takes or frees what the limit costs; if that does not fit, nothing changes. */
CUresult overhead_set_limit(struct context *context, int limit, uint64_t value);
/*
 * True if the calling thread may do what a capture forbids. CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
 * it may not, and the captures that forbid it are invalidated.
 */
CUresult capture_allows(void);
/* The same for what is never possible with a capturing stream. */
CUresult capture_allows_on(const struct stream *stream);
int capture_mode_exchange(int mode);

void events_forget(struct context *context);
/* Call it once per 1,024 items: notes when its events were reached, before that is forgotten. */
void events_settle(const struct context *context);
void modules_forget(struct context *context);

/* Host memory that the driver allocated: its base and size where `address` is within it. */
bool host_find(const void *address, void **base, size_t *bytes);
/* The allocation that holds `address`, on any device; NULL if none does. */
struct range *memory_find(uint64_t address, struct device **device);
/* Ends an allocation of a context. Returns the daemon's id of the memory to free; 0: none yet. */
uint64_t memory_end(struct device *device, struct range *range);

#endif
