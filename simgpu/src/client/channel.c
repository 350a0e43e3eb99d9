/* See channel.h. */
#define _GNU_SOURCE
#include "client/channel.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/engine.h"

#define SPINS 100

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool try_lock(uint32_t *word, uint32_t taken)
{
	uint32_t free = 0;

	return __atomic_compare_exchange_n(word, &free, taken, false, __ATOMIC_ACQUIRE,
					   __ATOMIC_RELAXED);
}

/*
 * The lock's word names the connection that holds it. It names no thread, because threads in
 * different PID namespaces can have equal numbers. The daemon clears an exited holder's word but
 * wakes no process, so each wait has a timeout. Returns false if the daemon has exited.
 */
static bool lock_slowly(struct sim_link *link, uint32_t *word)
{
	const uint32_t taken = sim_link_gpu(link)->connection | SIM_LOCK_WAITERS;
	const struct timespec wait = {.tv_nsec = 5000000};

	while (!try_lock(word, taken)) {
		uint32_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);

		if (!seen ||
		    !__atomic_compare_exchange_n(word, &seen, seen | SIM_LOCK_WAITERS, false,
						 __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			continue;
		if (syscall(SYS_futex, word, FUTEX_WAIT, seen | SIM_LOCK_WAITERS, &wait, NULL, 0) &&
		    !sim_link_alive(link))
			return false;
	}
	return true;
}

static struct sim_shared *lock(struct sim_link *link)
{
	struct sim_shared *shared = sim_link_shared(link);
	uint32_t *word;

	if (!shared)
		return NULL;
	word = &shared->board.lock;
	for (int i = 0; i < SPINS; i++)
		if (try_lock(word, sim_link_gpu(link)->connection))
			return shared;
	return lock_slowly(link, word) ? shared : NULL;
}

static void unlock(struct sim_shared *shared)
{
	uint32_t *word = &shared->board.lock;

	if (__atomic_exchange_n(word, 0, __ATOMIC_RELEASE) & SIM_LOCK_WAITERS)
		syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static const struct sim_channel *channel_of(const struct sim_shared *shared, uint32_t queue)
{
	return &shared->channels[queue / SIM_QUEUES];
}

/* Only a system call shows whether the daemon runs. One per SIM_PENDING items suffices. */
static bool accepts(const struct sim_link *link, const struct sim_shared *shared, uint32_t queue)
{
	if (channel_of(shared, queue)->submitted[queue % SIM_QUEUES] % SIM_PENDING == 0)
		return sim_link_alive(link);
	return !__atomic_load_n(&shared->board.lost, __ATOMIC_RELAXED);
}

enum sim_submitted sim_submit(struct sim_link *link, uint32_t queue, uint64_t duration_ns,
			      uint64_t earliest_ns, const uint64_t after[SIM_QUEUES],
			      uint64_t *number)
{
	struct sim_shared *shared = lock(link);
	bool open;

	if (!shared)
		return SIM_NO_CHANNEL;
	open = accepts(link, shared, queue) && !channel_of(shared, queue)->ended_ns;
	if (open) {
		engine_advance(shared, now_ns());
		*number = engine_submit(shared, queue, duration_ns, earliest_ns, after);
	}
	unlock(shared);
	if (!open)
		return SIM_NO_CHANNEL;
	return *number ? SIM_SUBMITTED : SIM_QUEUE_FULL;
}

void sim_look(struct sim_link *link)
{
	struct sim_shared *shared = lock(link);

	if (!shared)
		return;
	engine_advance(shared, now_ns());
	unlock(shared);
}

static uint64_t completed(const struct sim_shared *shared, uint32_t queue)
{
	return __atomic_load_n(&channel_of(shared, queue)->completed[queue % SIM_QUEUES],
			       __ATOMIC_ACQUIRE);
}

bool sim_is_done(const struct sim_link *link, uint32_t queue, uint64_t number)
{
	return completed(sim_link_shared(link), queue) >= number;
}

uint64_t sim_done_ns(const struct sim_link *link, uint32_t queue, uint64_t number)
{
	const struct sim_channel *channel = channel_of(sim_link_shared(link), queue);

	return __atomic_load_n(
	    &channel->queues[queue % SIM_QUEUES].finished_ns[number % SIM_HISTORY],
	    __ATOMIC_RELAXED);
}

uint64_t sim_predict_ns(struct sim_link *link, uint32_t queue, uint64_t number)
{
	struct sim_shared *shared = lock(link);
	uint64_t done_ns = 0;

	if (!shared)
		return 0;
	engine_advance(shared, now_ns());
	if (completed(shared, queue) < number)
		done_ns = engine_predict_ns(shared, queue, number);
	unlock(shared);
	return done_ns;
}

uint64_t sim_oldest_item(const struct sim_link *link, uint32_t queue)
{
	return completed(sim_link_shared(link), queue) + 1;
}
