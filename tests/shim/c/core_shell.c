/*
 * A process controlled by the test: one command per line in, one line out.
 *
 * Each command is one function of region.h, or an action of a program that affects the library:
 * fork, clone, close every descriptor, exec, end a thread. `stop STEP N` makes the process stop
 * itself (SIGSTOP) at the Nth passage of that step (os/step.h); `end STEP N` ends the thread that
 * passes there.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/step.h"
#include "region/process.h"
#include "region/shared.h"
#include "test.h"
#include "vgpu/region.h"

#define LINE_BYTES 512

static const char *const step_names[] = {
#define STEP(name) #name,
#include "os/steps.def"
#undef STEP
};

static int armed_step = -1, armed_passes;
static bool armed_ends_thread;

void vgpu_step(enum vgpu_step step)
{
	if ((int)step != armed_step || --armed_passes != 0)
		return;
	if (armed_ends_thread)
		syscall(SYS_exit, 0);
	kill(getpid(), SIGSTOP);
}

static const char *name_of(enum vgpu_result result)
{
	static const char *const names[] = {"OK",
					    "UNMANAGED",
					    "OVER_LIMIT",
					    "GRANT_MISSING",
					    "GRANT_INVALID",
					    "REGION_MISSING",
					    "REGION_INVALID",
					    "REGION_READONLY",
					    "NO_SLOT",
					    "SYSTEM"};
	return names[result];
}

static void answer(const char *command, char *out);
static int run_shell(void);

static void say_result(enum vgpu_result result, const struct vgpu_error *error, char *out)
{
	char text[LINE_BYTES - 64];

	if (result == VGPU_OK || !error)
		snprintf(out, LINE_BYTES, "%s", name_of(result));
	else
		snprintf(out, LINE_BYTES, "%s %s", name_of(result),
			 vgpu_error_text(error, text, sizeof(text)));
}

static void do_arm(bool ends_thread, const char *rest, char *out)
{
	char name[64];

	armed_ends_thread = ends_thread;
	sscanf(rest, "%63s %d", name, &armed_passes);
	for (armed_step = VGPU_CORE_STEP_COUNT - 1; armed_step >= 0; armed_step--)
		if (!strcmp(step_names[armed_step], name))
			break;
	snprintf(out, LINE_BYTES, armed_step < 0 ? "no such step" : "OK");
}

/* The child answers `rest` through a pipe, then waits to be killed. */
static void do_child(bool raw, const char *rest, char *out)
{
	int ends[2];
	char said[LINE_BYTES] = "";
	long pid;

	if (pipe(ends) != 0)
		abort();
	pid = raw ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
	if (pid == 0) {
		if (*rest)
			answer(rest, said);
		if (write(ends[1], said, sizeof(said)) != sizeof(said))
			abort();
		for (;;)
			pause();
	}
	close(ends[1]);
	if (read(ends[0], said, sizeof(said)) < 0)
		abort();
	close(ends[0]);
	snprintf(out, LINE_BYTES, "%ld %.400s", pid, said);
}

static void *in_thread(void *line)
{
	char out[LINE_BYTES];

	answer(line, out);
	strcpy(line, out);
	return NULL;
}

static void do_thread(const char *rest, char *out)
{
	pthread_t thread;
	char line[LINE_BYTES];

	snprintf(line, sizeof(line), "%s", rest);
	if (pthread_create(&thread, NULL, in_thread, line) || pthread_join(thread, NULL))
		abort();
	strcpy(out, line);
}

static void *shell_thread(void *unused)
{
	(void)unused;
	exit(run_shell());
}

/* The process continues without its first thread. */
static void do_end_main(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, shell_thread, NULL))
		abort();
	if (write(1, "OK\n", 3) != 3)
		abort();
	pthread_exit(NULL);
}

/* Map the page that holds the lock (no access, shared) again, through another description: as on
 * overlayfs, where the mapping remains and the lock does not. */
static void do_drop_lock(char *out)
{
	char line[LINE_BYTES], permissions[8], path[LINE_BYTES];
	uintptr_t from, to;
	unsigned long long offset;
	FILE *maps = fopen("/proc/thread-self/maps", "r");
	int fd;

	snprintf(path, sizeof(path), "%s/region", getenv("GPUSLICE_DIR"));
	fd = open(path, O_RDWR);
	snprintf(out, LINE_BYTES, "not found");
	while (maps && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %llx", &from, &to, permissions,
			   &offset) != 4 ||
		    strcmp(permissions, "---s") != 0 ||
		    mmap((void *)from, to - from, PROT_NONE, MAP_SHARED | MAP_FIXED, fd,
			 (off_t)offset) == MAP_FAILED)
			continue;
		madvise((void *)from, to - from, MADV_DONTFORK);
		snprintf(out, LINE_BYTES, "OK");
	}
	close(fd);
	if (maps)
		fclose(maps);
}

static void do_gpu(const char *rest, char *out)
{
	uint8_t uuid[16];

	for (int i = 0; i < 16; i++)
		sscanf(rest + 2 * i, "%2" SCNx8, &uuid[i]);
	snprintf(out, LINE_BYTES, "%d", vgpu_gpu_of_uuid(uuid, 0));
}

/* Shared memory that is held, the latest on top. */
static vgpu_hold held[16];
static int held_count;

static void do_share(const char *rest, char *out)
{
	struct vgpu_shared_charge charge = {0};
	uint64_t key = 0;

	sscanf(rest, "%d %" SCNu64 " %" SCNu64, &charge.gpu, &charge.bytes, &key);
	held[held_count] = vgpu_shared_export(charge, key);
	snprintf(out, LINE_BYTES, "%" PRIu32, held[held_count]);
	held_count += held[held_count] != 0;
}

/* The hold, and what it is a hold on. */
static void do_join(const char *rest, char *out)
{
	struct vgpu_shared_charge charge = {0};
	vgpu_hold hold = vgpu_shared_join(strtoull(rest, NULL, 10), &charge);

	held[held_count] = hold;
	held_count += hold != 0;
	if (hold)
		snprintf(out, LINE_BYTES, "%" PRIu32 " %d %" PRIu64, hold, charge.gpu,
			 charge.bytes);
	else
		snprintf(out, LINE_BYTES, "0");
}

static void do_exec(const char *rest)
{
	char path[LINE_BYTES], argument[LINE_BYTES] = "";

	sscanf(rest, "%511s %511s", path, argument);
	execl(path, path, argument[0] ? argument : NULL, NULL);
	abort();
}

static void answer(const char *command, char *out)
{
	struct vgpu_error error = {0};
	char verb[32] = "";
	const char *rest;
	int gpu = 0, at = 0;
	uint64_t bytes = 0;

	sscanf(command, "%31s %n", verb, &at);
	rest = command + at;
	sscanf(rest, "%d %" SCNu64, &gpu, &bytes);
	snprintf(out, LINE_BYTES, "OK");
	if (!strcmp(verb, "attach"))
		say_result(vgpu_attach(&error), &error, out);
	else if (!strcmp(verb, "peek"))
		say_result(vgpu_peek(&error), &error, out);
	else if (!strcmp(verb, "reserve"))
		say_result(vgpu_reserve(gpu, bytes), NULL, out);
	else if (!strcmp(verb, "refund"))
		vgpu_refund(gpu, bytes);
	else if (!strcmp(verb, "share"))
		do_share(rest, out);
	else if (!strcmp(verb, "join"))
		do_join(rest, out);
	else if (!strcmp(verb, "leave"))
		vgpu_shared_leave(held_count ? held[--held_count] : 0);
	else if (!strcmp(verb, "used"))
		snprintf(out, LINE_BYTES, "%" PRIu64, vgpu_used_bytes(gpu));
	else if (!strcmp(verb, "dropped"))
		snprintf(out, LINE_BYTES, "%d", vgpu_now_ns() - vgpu_last_exit_ns(gpu) < bytes);
	else if (!strcmp(verb, "limit"))
		snprintf(out, LINE_BYTES, "%" PRIu64, vgpu_limit_bytes(gpu));
	else if (!strcmp(verb, "gpu"))
		do_gpu(rest, out);
	else if (!strcmp(verb, "stop"))
		do_arm(false, rest, out);
	else if (!strcmp(verb, "end"))
		do_arm(true, rest, out);
	else if (!strcmp(verb, "fork"))
		do_child(false, rest, out);
	else if (!strcmp(verb, "clone"))
		do_child(true, rest, out);
	else if (!strcmp(verb, "thread"))
		do_thread(rest, out);
	else if (!strcmp(verb, "end-main"))
		do_end_main();
	else if (!strcmp(verb, "close-range"))
		syscall(SYS_close_range, 3, ~0U, 0);
	else if (!strcmp(verb, "drop-lock"))
		do_drop_lock(out);
	else if (!strcmp(verb, "exec"))
		do_exec(rest);
	else
		snprintf(out, LINE_BYTES, "unknown command: %.100s", command);
}

static int run_shell(void)
{
	char line[LINE_BYTES], out[LINE_BYTES];
	size_t have = 0;

	/* By bytes: input after a line belongs to the image of a later exec. */
	while (have < sizeof(line) && read(0, line + have, 1) == 1) {
		if (line[have] != '\n') {
			have++;
			continue;
		}
		line[have] = '\0';
		have = 0;
		answer(line, out);
		strcat(out, "\n");
		if (write(1, out, strlen(out)) < 0)
			return 1;
	}
	return 0;
}

static int print_steps(void)
{
	for (int step = 0; step < VGPU_CORE_STEP_COUNT; step++)
		puts(step_names[step]);
	return 0;
}

static int thread_rounds, thread_gpus;

static void *reserve_and_refund(void *number)
{
	uint64_t random = (uint64_t)(uintptr_t)number + 1;

	for (int round = 0; round < thread_rounds; round++) {
		int gpu = round % thread_gpus;
		uint64_t bytes = next_random(&random) >> 44;

		if (vgpu_reserve(gpu, bytes) != VGPU_OK)
			continue;
		MUST(vgpu_used_bytes(gpu) <= vgpu_limit_bytes(gpu));
		vgpu_refund(gpu, bytes);
	}
	return NULL;
}

/* On every GPU at once, for the sanitizers and for the sums: prints what is left on each. */
static int run_threads(int count, int rounds, int gpus)
{
	pthread_t threads[32];

	thread_rounds = rounds;
	thread_gpus = gpus;
	for (int i = 0; i < count; i++)
		MUST(!pthread_create(&threads[i], NULL, reserve_and_refund, (void *)(uintptr_t)i));
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	for (int gpu = 0; gpu < gpus; gpu++)
		printf("%" PRIu64 "\n", vgpu_used_bytes(gpu));
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (!strcmp(what, "shell"))
		return run_shell();
	if (!strcmp(what, "steps"))
		return print_steps();
	if (!strcmp(what, "threads") && argc == 5)
		return run_threads(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
	fprintf(stderr, "usage: vgpu-core-test shell | steps | threads COUNT ROUNDS GPUS\n");
	return 2;
}
