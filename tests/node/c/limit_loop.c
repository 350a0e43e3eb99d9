/*
 * A tenant's program that calls the driver in a loop, for tests that change what is around it:
 *
 *     limit_loop LIMIT_BYTES REPORT_FILE    until it is killed
 *     limit_loop LIMIT_BYTES                one pass; exit status 0 if the limit was in force
 *
 * Each pass: the driver reports exactly LIMIT_BYTES of memory, refuses that many bytes beside the
 * context, and gives and takes back a few. Every two seconds it also starts itself again, because a
 * new process loads the library from the container's mount. The report has the passes, the starts,
 * and what was wrong; it is replaced by rename.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int (*init_fn)(unsigned int flags);
typedef int (*device_fn)(int *device, int ordinal);
typedef int (*retain_fn)(void **context, int device);
typedef int (*current_fn)(void *context);
typedef int (*info_fn)(size_t *free_bytes, size_t *total_bytes);
typedef int (*alloc_fn)(unsigned long long *pointer, size_t bytes);
typedef int (*free_fn)(unsigned long long pointer);

enum { OUT_OF_MEMORY = 2, FEW_BYTES = 1 << 20, PAUSE_NS = 50 * 1000 * 1000, PASSES_A_START = 40 };

static void *driver;
static char wrong[256];

static void *entry(const char *name)
{
	void *found = dlsym(driver, name);

	if (!found) {
		fprintf(stderr, "limit_loop: the driver has no %s\n", name);
		exit(3);
	}
	return found;
}

static int begin(void)
{
	int device;
	void *context;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	return driver && ((init_fn)entry("cuInit"))(0) == 0 &&
	       ((device_fn)entry("cuDeviceGet"))(&device, 0) == 0 &&
	       ((retain_fn)entry("cuDevicePrimaryCtxRetain"))(&context, device) == 0 &&
	       ((current_fn)entry("cuCtxSetCurrent"))(context) == 0;
}

/* Whether the limit is in force. */
static int pass(size_t limit_bytes)
{
	alloc_fn alloc = (alloc_fn)entry("cuMemAlloc_v2");
	free_fn release = (free_fn)entry("cuMemFree_v2");
	size_t free_bytes = 0, total_bytes = 0;
	unsigned long long pointer;
	int info = ((info_fn)entry("cuMemGetInfo_v2"))(&free_bytes, &total_bytes);
	int much = alloc(&pointer, limit_bytes);
	int few, freed;

	if (much == 0)
		release(pointer);
	few = alloc(&pointer, FEW_BYTES);
	freed = few == 0 ? release(pointer) : few;
	if (info == 0 && total_bytes == limit_bytes && much == OUT_OF_MEMORY && freed == 0)
		return 1;
	snprintf(wrong, sizeof wrong, "info %d, total %zu, all %d, few %d, freed %d", info,
		 total_bytes, much, few, freed);
	return 0;
}

static int starts_again(char *program, char *limit)
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		execl(program, program, limit, (char *)NULL);
		_exit(4);
	}
	if (child > 0 && waitpid(child, &status, 0) == child && status == 0)
		return 1;
	snprintf(wrong, sizeof wrong, "a new process: wait status %d", status);
	return 0;
}

static void report(const char *path, unsigned long passes, unsigned long starts, unsigned long bad)
{
	char aside[4096];
	FILE *file;

	snprintf(aside, sizeof aside, "%s.new", path);
	file = fopen(aside, "w");
	if (!file)
		return;
	fprintf(file, "{\"passes\": %lu, \"starts\": %lu, \"bad\": %lu, \"wrong\": \"%s\"}\n",
		passes, starts, bad, wrong);
	fclose(file);
	rename(aside, path);
}

int main(int argc, char **argv)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	unsigned long passes = 0, starts = 0, bad = 0;
	size_t limit_bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;

	if (!begin()) {
		fprintf(stderr, "limit_loop: no context\n");
		return 2;
	}
	if (argc < 3)
		return !pass(limit_bytes);
	for (;;) {
		bad += !pass(limit_bytes);
		if (++passes % PASSES_A_START == 1) {
			bad += !starts_again(argv[0], argv[1]);
			starts++;
			report(argv[2], passes, starts, bad);
		}
		nanosleep(&pause, NULL);
	}
}
