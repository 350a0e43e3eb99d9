/*
 * Very many processes in one container.
 *
 *   many COUNT   as many attach at once and hold 1000 bytes each; prints how many did, how many
 * found no slot, and the bytes that are charged; then all are killed, and a last
 * attach prints what is charged still
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core_test.h"
#include "vgpu/region.h"

enum { HELD_BYTES = 1000 };

struct tally {
	uint64_t attached, without_slot, failed;
	uint64_t charged_bytes;
};

static void hold(struct tally *tally)
{
	uint64_t *where = &tally->failed;

	switch (vgpu_attach(NULL)) {
	case VGPU_OK:
		if (vgpu_reserve(0, HELD_BYTES) == VGPU_OK)
			where = &tally->attached;
		break;
	case VGPU_NO_SLOT:
		where = &tally->without_slot;
		break;
	default:
		break;
	}
	__atomic_add_fetch(where, 1, __ATOMIC_ACQ_REL);
	for (;;)
		pause();
}

static void report(struct tally *tally)
{
	if (fork() == 0) {
		(void)vgpu_peek(NULL);
		tally->charged_bytes = vgpu_used_bytes(0);
		_exit(0);
	}
	wait(NULL);
}

int core_many(int argc, char **argv)
{
	struct tally *tally =
	    mmap(NULL, sizeof(*tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t count = argc == 1 ? strtoull(argv[0], NULL, 10) : 0;
	pid_t *pids = calloc(count + 1, sizeof(*pids));

	if (tally == MAP_FAILED || !pids || !count)
		return 2;
	setvbuf(stdout, NULL, _IONBF, 0); /* TSan's _exit writes what a child inherits */
	for (uint64_t i = 0; i < count; i++) {
		pids[i] = fork();
		if (pids[i] == 0)
			hold(tally);
		if (pids[i] < 0)
			return 3;
	}
	while (__atomic_load_n(&tally->attached, __ATOMIC_ACQUIRE) +
		   __atomic_load_n(&tally->without_slot, __ATOMIC_ACQUIRE) +
		   __atomic_load_n(&tally->failed, __ATOMIC_ACQUIRE) <
	       count)
		usleep(1000);
	report(tally);
	printf("%" PRIu64 " %" PRIu64 " %" PRIu64, tally->attached, tally->without_slot,
	       tally->charged_bytes);
	for (uint64_t i = 0; i < count; i++)
		kill(pids[i], SIGKILL);
	while (wait(NULL) > 0)
		;
	report(tally);
	printf(" %" PRIu64 "\n", tally->charged_bytes);
	free(pids);
	return 0;
}
