/*
 * A program whose process has the library twice: in two namespaces of the loader, each with a
 * driver.
 *
 *   two-copies DRIVER LIBRARY   allocates 3 MiB through the first copy and 5 MiB through the
 * second, prints "ready"; then for each line of input: "free N" and "alloc N" do what they say
 * through copy N; "exec" becomes /bin/sleep
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COPIES 2
#define MIB    (1 << 20)

static struct copy {
	int (*alloc)(unsigned long long *address, size_t bytes);
	int (*free)(unsigned long long address);
	unsigned long long address;
	size_t bytes;
} copies[COPIES] = {{.bytes = 3 * MIB}, {.bytes = 5 * MIB}};

static void *found(void *handle, const char *name)
{
	void *symbol = handle ? dlsym(handle, name) : NULL;

	if (!symbol) {
		fprintf(stderr, "%s: %s\n", name, dlerror());
		exit(1);
	}
	return symbol;
}

static void must(int code, const char *what)
{
	if (!code)
		return;
	fprintf(stderr, "%s: %d\n", what, code);
	exit(1);
}

static void load(struct copy *copy, const char *driver_path, const char *library_path)
{
	void *driver = dlmopen(LM_ID_NEWLM, driver_path, RTLD_NOW), *library, *context;
	Lmid_t name_space = LM_ID_BASE;
	int (*init)(unsigned int);
	int (*retain)(void **, int);
	int (*set_current)(void *);

	must(!driver || dlinfo(driver, RTLD_DI_LMID, &name_space) != 0, "driver");
	library = dlmopen(name_space, library_path, RTLD_NOW);
	init = found(library, "cuInit");
	copy->alloc = found(library, "cuMemAlloc_v2");
	copy->free = found(library, "cuMemFree_v2");
	retain = found(driver, "cuDevicePrimaryCtxRetain");
	set_current = found(driver, "cuCtxSetCurrent");
	must(init(0), "cuInit");
	must(retain(&context, 0) || set_current(context), "context");
	must(copy->alloc(&copy->address, copy->bytes), "cuMemAlloc");
}

int main(int argc, char **argv)
{
	char line[64];

	must(argc != 3, "usage: two-copies DRIVER LIBRARY");
	for (int i = 0; i < COPIES; i++)
		load(&copies[i], argv[1], argv[2]);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		struct copy *copy = &copies[atoi(line + strcspn(line, " ")) % COPIES];

		if (!strncmp(line, "free", 4))
			must(copy->free(copy->address), "cuMemFree");
		else if (!strncmp(line, "alloc", 5))
			must(copy->alloc(&copy->address, copy->bytes), "cuMemAlloc");
		else
			execl("/bin/sleep", "sleep", "600", NULL);
		puts("done");
		fflush(stdout);
	}
	return 0;
}
