/*
 * A process controlled by the test: one command per line in, one line out.
 *
 * Each command is one function of region.h, or an action of a program that affects the library:
 * fork, clone, close every descriptor, exec, end a thread. `stop STEP N` makes the process stop
 * itself (SIGSTOP) at the Nth passage of the step (os/step.h). `end STEP N` ends the thread that
 * passes there.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
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

static void answer(const char *command, char *out);
static int run_shell(void);

static void say_result(enum vgpu_result result, const struct vgpu_error *error, char *out)
{
	static const char *const names[] = {
	    "OK",
	    "UNMANAGED",
	    "OVER_LIMIT",
	    "GRANT_MISSING",
	    "GRANT_INVALID",
	    "REGION_MISSING",
	    "REGION_INVALID",
	    "REGION_READONLY",
	    "NO_SLOT",
	    "SYSTEM",
	};
	char text[LINE_BYTES - 64] = "";

	if (result != VGPU_OK && error)
		vgpu_error_text(error, text, sizeof(text));
	snprintf(out, LINE_BYTES, "%s%s%s", names[result], *text ? " " : "", text);
}

static void say_number(uint64_t number, char *out)
{
	snprintf(out, LINE_BYTES, "%" PRIu64, number);
}

static void do_arm(bool ends_thread, const char *rest, char *out)
{
	char name[64];

	armed_ends_thread = ends_thread;
	sscanf(rest, "%63s %d", name, &armed_passes);
	for (armed_step = VGPU_CORE_STEP_COUNT - 1; armed_step >= 0; armed_step--)
		if (!strcmp(step_names[armed_step], name))
			return;
	strcpy(out, "no such step");
}

/* Fork a child that sends its answer to `rest` through a pipe, then waits to be killed. */
static void do_child(bool raw, const char *rest, char *out)
{
	int ends[2];
	char said[LINE_BYTES] = "";
	long pid;

	MUST(pipe(ends) == 0);
	pid = raw ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
	if (pid == 0) {
		if (*rest)
			answer(rest, said);
		MUST(write(ends[1], said, sizeof(said)) == sizeof(said));
		for (;;)
			pause();
	}
	close(ends[1]);
	MUST(read(ends[0], said, sizeof(said)) >= 0);
	close(ends[0]);
	snprintf(out, LINE_BYTES, "%ld %.400s", pid, said);
}

struct call {
	const char *command;
	char *out;
};

static void *answer_call(void *argument)
{
	const struct call *call = argument;

	answer(call->command, call->out);
	return NULL;
}

static void do_thread(const char *rest, char *out)
{
	struct call call = {rest, out};
	pthread_t thread;

	MUST(!pthread_create(&thread, NULL, answer_call, &call) && !pthread_join(thread, NULL));
}

static void *shell_thread(void *unused)
{
	(void)unused;
	exit(run_shell());
}

/* End the first thread. Another thread continues the shell. */
static void do_end_main(void)
{
	pthread_t thread;

	MUST(!pthread_create(&thread, NULL, shell_thread, NULL) && write(1, "OK\n", 3) == 3);
	pthread_exit(NULL);
}

/* Lose the lock of this process's slot, as on overlayfs: map the locked page (no access, shared)
 * again, through a file description without the lock. */
static void do_drop_lock(char *out)
{
	char line[LINE_BYTES];
	uintptr_t from, to;
	unsigned long long offset;
	FILE *maps = fopen("/proc/thread-self/maps", "r");
	int fd;

	snprintf(line, sizeof(line), "%s/region", getenv("GPUSLICE_DIR"));
	fd = open(line, O_RDWR);
	strcpy(out, "not found");
	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ---s %llx", &from, &to, &offset) != 3 ||
		    mmap((void *)from, to - from, PROT_NONE, MAP_SHARED | MAP_FIXED, fd,
			 (off_t)offset) == MAP_FAILED)
			continue;
		madvise((void *)from, to - from, MADV_DONTFORK);
		strcpy(out, "OK");
	}
	close(fd);
	fclose(maps);
}

static int gpu_of(const char *hex)
{
	uint8_t uuid[16];

	for (int i = 0; i < 16; i++)
		sscanf(hex + 2 * i, "%2" SCNx8, &uuid[i]);
	return vgpu_gpu_of_uuid(uuid, 0);
}

/* The shared memory that this process holds, the latest last. */
static vgpu_hold held[16];
static int held_count;

static vgpu_hold keep(vgpu_hold hold)
{
	held[held_count] = hold;
	held_count += hold != 0;
	return hold;
}

/* Join the shared memory of the key, and print the hold, the GPU and the bytes. */
static void do_join(const char *rest, char *out)
{
	struct vgpu_shared_charge charge = {0};
	vgpu_hold hold = keep(vgpu_shared_join(strtoull(rest, NULL, 10), &charge));

	snprintf(out, LINE_BYTES, hold ? "%" PRIu32 " %d %" PRIu64 : "0", hold, charge.gpu,
		 charge.bytes);
}

static void do_exec(const char *rest)
{
	char path[LINE_BYTES], argument[LINE_BYTES];

	sscanf(rest, "%511s %511s", path, argument);
	execl(path, path, argument, NULL);
	abort();
}

static void answer(const char *command, char *out)
{
	struct vgpu_error error = {0};
	char verb[32] = "";
	const char *rest;
	int gpu = 0, at = 0;
	uint64_t bytes = 0, key = 0;

	sscanf(command, "%31s %n", verb, &at);
	rest = command + at;
	sscanf(rest, "%d %" SCNu64 " %" SCNu64, &gpu, &bytes, &key);
	strcpy(out, "OK");
	if (!strcmp(verb, "attach"))
		say_result(vgpu_attach(&error), &error, out);
	else if (!strcmp(verb, "peek"))
		say_result(vgpu_peek(&error), &error, out);
	else if (!strcmp(verb, "reserve"))
		say_result(vgpu_reserve(gpu, bytes), NULL, out);
	else if (!strcmp(verb, "refund"))
		vgpu_refund(gpu, bytes);
	else if (!strcmp(verb, "share"))
		say_number(keep(vgpu_shared_export((struct vgpu_shared_charge){gpu, bytes}, key)),
			   out);
	else if (!strcmp(verb, "join"))
		do_join(rest, out);
	else if (!strcmp(verb, "leave"))
		vgpu_shared_leave(held_count ? held[--held_count] : 0);
	else if (!strcmp(verb, "used"))
		say_number(vgpu_used_bytes(gpu), out);
	else if (!strcmp(verb, "dropped"))
		say_number(vgpu_now_ns() - vgpu_last_exit_ns(gpu) < bytes, out);
	else if (!strcmp(verb, "limit"))
		say_number(vgpu_limit_bytes(gpu), out);
	else if (!strcmp(verb, "gpu"))
		snprintf(out, LINE_BYTES, "%d", gpu_of(rest));
	else if (!strcmp(verb, "stop") || !strcmp(verb, "end"))
		do_arm(*verb == 'e', rest, out);
	else if (!strcmp(verb, "fork") || !strcmp(verb, "clone"))
		do_child(*verb == 'c', rest, out);
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

	/* Read byte by byte, because a program started by exec reads the later input. */
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

static int rounds, gpus;

static void *reserve_and_refund(void *number)
{
	uint64_t random = (uint64_t)(uintptr_t)number + 1;

	for (int round = 0; round < rounds; round++) {
		int gpu = round % gpus;
		uint64_t bytes = next_random(&random) >> 44;

		if (vgpu_reserve(gpu, bytes) != VGPU_OK)
			continue;
		MUST(vgpu_used_bytes(gpu) <= vgpu_limit_bytes(gpu));
		vgpu_refund(gpu, bytes);
	}
	return NULL;
}

/* `threads COUNT ROUNDS GPUS` reserves and refunds on every GPU from all threads, for the
 * sanitizers, and prints the remaining charge of each GPU. */
int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (!strcmp(what, "shell"))
		return run_shell();
	for (int step = 0; !strcmp(what, "steps") && step < VGPU_CORE_STEP_COUNT; step++)
		puts(step_names[step]);
	if (!strcmp(what, "threads") && argc == 5) {
		rounds = atoi(argv[3]);
		gpus = atoi(argv[4]);
		run_threads(atoi(argv[2]), reserve_and_refund);
		for (int gpu = 0; gpu < gpus; gpu++)
			printf("%" PRIu64 "\n", vgpu_used_bytes(gpu));
	}
	return 0;
}
