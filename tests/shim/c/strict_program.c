/*
 * Opens the driver in the way that the first argument names, allocates 128 MiB and then 1 GiB, and
 * queries the free and total memory. Prints the three result codes, and the total in MiB.
 *
 *	strict-program name | path FILE | deep FILE | apart FILE | default
 *
 * FILE is libcuda's path. A program built with -DLINKED is linked with libcuda, and also has the
 * way `linked`.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int function();

#ifdef LINKED
int cuInit(), cuDevicePrimaryCtxRetain(), cuCtxSetCurrent(), cuMemAlloc_v2(), cuMemGetInfo_v2();
#define LINK(name) ((function *)name)
#else
#define LINK(name) NULL
#endif

static void *open_driver(const char *way, const char *file)
{
	if (strcmp(way, "name") == 0)
		return dlopen("libcuda.so.1", RTLD_NOW);
	if (strcmp(way, "default") == 0)
		return dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) ? RTLD_DEFAULT : NULL;
#ifdef RTLD_DEEPBIND
	if (strcmp(way, "deep") == 0)
		return dlopen(file, RTLD_NOW | RTLD_DEEPBIND);
	if (strcmp(way, "apart") == 0)
		return dlmopen(LM_ID_NEWLM, file, RTLD_NOW);
#endif
	return dlopen(file, RTLD_NOW);
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "name";
	int linked = strcmp(way, "linked") == 0;
	void *driver = linked ? NULL : open_driver(way, argc > 2 ? argv[2] : NULL);
	void *context, *memory;
	size_t free_bytes = 0, total_bytes = 0;
	int codes[3];

	if (!linked && !driver && strcmp(way, "default") != 0) {
		puts(dlerror());
		return 1;
	}
#define FIND(name) (linked ? LINK(name) : (function *)dlsym(driver, #name))
	if (FIND(cuInit)(0) || FIND(cuDevicePrimaryCtxRetain)(&context, 0) ||
	    FIND(cuCtxSetCurrent)(context))
		return 2;
	codes[0] = FIND(cuMemAlloc_v2)(&memory, (size_t)128 << 20);
	codes[1] = FIND(cuMemAlloc_v2)(&memory, (size_t)1 << 30);
	codes[2] = FIND(cuMemGetInfo_v2)(&free_bytes, &total_bytes);
	printf("%d %d %d %zu", codes[0], codes[1], codes[2], total_bytes >> 20);
	if (argc > 3) { /* hold the memory until a line is read */
		putchar('\n');
		fflush(stdout);
		getchar();
	}
	return 0;
}
