/*
 * At the limit, threads allocate memory in every way (mixed_storm_paths.c) and free memory that any
 * of them allocated. The wrappers are linked in, so that sanitizers see them. Meanwhile another
 * process shares its memory with the threads, and fork children find no driver.
 *
 *	vgpu-mixed-storm OPERATIONS
 *
 * Prints "live" while allocations exist, and "freed" when all are freed. Then the threads also
 * create and destroy contexts and code, whose memory is measured and hence inexact meanwhile.
 * Prints "mixed" after that, and "gone" when no context is left. Waits for a line after each word.
 */
#include "mixed_storm.h"

#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 6, THINGS = 48, PEER_BYTES = 3 << 20 };

int nvmlInit_v2(void);

__thread uint64_t random_state = 1;
__thread CUstream stream;

static unsigned long operations;
static CUcontext primary;
static struct thing *things[THINGS];
static bool contexts_too;

static void begin(void)
{
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	OK(cuCtxSetCurrent(primary));
}

static void say_and_wait(const char *what)
{
	char answer[8];

	puts(what);
	fflush(stdout);
	MUST(fgets(answer, sizeof(answer), stdin));
}

/* The peer process: share memory until the other process closes the pipe `until`. */
static void be_peer(int answers, int until)
{
	CUdeviceptr memory[PEER_HANDLES];
	char end;

	begin();
	for (int i = 0; i < PEER_HANDLES; i++) {
		OK(cuMemAlloc_v2(&memory[i], (size_t)PEER_BYTES << i % 3));
		OK(cuIpcGetMemHandle(&peer_handles[i], memory[i]));
	}
	MUST(write(answers, peer_handles, sizeof(peer_handles)) == sizeof(peer_handles));
	MUST(read(until, &end, 1) == 0);
	for (int i = 0; i < PEER_HANDLES; i++)
		OK(cuMemFree_v2(memory[i]));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	exit(0);
}

/* Fork the peer before this process has a thread or a driver. The peer ends when the returned
 * descriptor is closed. */
static int start_peer(pid_t *peer)
{
	int answers[2], until[2];

	MUST(pipe(answers) == 0 && pipe(until) == 0);
	*peer = fork();
	MUST(*peer >= 0);
	if (!*peer) {
		close(until[1]);
		be_peer(answers[1], until[0]);
	}
	close(answers[1]);
	close(until[0]);
	MUST(read(answers[0], peer_handles, sizeof(peer_handles)) == sizeof(peer_handles));
	close(answers[0]);
	return until[1];
}

static void await_end(pid_t child)
{
	int status;

	MUST(waitpid(child, &status, 0) == child);
	MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A fork child has no driver. Its calls must return even if the parent's threads held locks. */
static void fork_in_the_middle(void)
{
	CUdeviceptr address;
	pid_t child = fork();

	MUST(child >= 0);
	if (!child)
		_exit(cuMemAlloc_v2(&address, PEER_BYTES) != CUDA_ERROR_NOT_INITIALIZED ||
		      cuMemFree_v2(0x1000) == CUDA_SUCCESS);
	await_end(child);
}

static void end(struct thing *thing)
{
	if (thing)
		thing->path->end(thing);
	free(thing);
}

/* Free the allocation in a random place, or make one if the place is empty. */
static void step(void)
{
	struct thing **place = &things[below(THINGS)];
	struct thing *thing = __atomic_exchange_n(place, NULL, __ATOMIC_ACQ_REL), *none = NULL;

	if (!thing) {
		thing = calloc(1, sizeof(*thing));
		MUST(thing);
		thing->path = &paths[below(path_count)];
		if (!thing->path->make(thing)) {
			free(thing);
			return;
		}
		if (__atomic_compare_exchange_n(place, &none, thing, false, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE))
			return;
	}
	end(thing);
}

static void *storm_on(void *number)
{
	random_state = ((uint64_t)(uintptr_t)number + 1) * UINT64_C(0x9e3779b97f4a7c15);
	OK(cuCtxSetCurrent(primary));
	look();
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (unsigned long i = 0; i < operations; i++) {
		step();
		if (i % 16 == 0)
			look();
		if (contexts_too && i % 16 == 8)
			live_briefly();
		if (!number && i == operations / 2)
			fork_in_the_middle();
	}
	OK(cuStreamSynchronize(stream));
	OK(cuStreamDestroy_v2(stream));
	return NULL;
}

static void storm(void)
{
	run_threads(THREADS, storm_on);
	OK(cuCtxSynchronize());
}

static void end_all(void)
{
	for (int i = 0; i < THINGS; i++) {
		end(things[i]);
		things[i] = NULL;
	}
	OK(cuCtxSynchronize());
	OK(cuDeviceGraphMemTrim(0));
}

int main(int argc, char **argv)
{
	pid_t peer;
	int until;

	MUST(argc == 2);
	operations = strtoul(argv[1], NULL, 10);
	until = start_peer(&peer);
	MUST(nvmlInit_v2() == 0);
	begin();
	storm();
	look();
	say_and_wait("live");
	end_all();
	look();
	say_and_wait("freed");
	contexts_too = true;
	storm();
	end_all();
	look();
	say_and_wait("mixed");
	close(until);
	await_end(peer);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	say_and_wait("gone");
	return 0;
}
