/*
 * cuda-probe, in the lab's images, prints what a program in a container can do with GPU 0, as one
 * JSON line. It has the results of cuInit, of the first context, of allocating all free memory, and
 * of 512 bytes more. With `hold` it then keeps running. It loads the driver only by dlopen, as
 * programs with a statically linked runtime do. If built with LINKED, it is linked with the driver.
 * If built with STATIC too, it contains the driver.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "abi/cuda_entry.h"

enum { NOT_TRIED = -1, MORE_BYTES = 512 };

#ifdef STATIC
#define dlopen(name, mode) ((void *)1)
#endif

#ifdef LINKED
#define FIND(driver, name) name
#else
#define FIND(driver, name) ((__typeof__(&name))find(driver, #name))

static void *find(void *driver, const char *name)
{
	void *found = dlsym(driver, name);

	if (!found)
		fprintf(stderr, "probe: the driver has no %s\n", name);
	return found;
}
#endif

int main(int argc, char **argv)
{
	int init = NOT_TRIED, made = NOT_TRIED, filled = NOT_TRIED, more = NOT_TRIED, device;
	size_t free_bytes = 0, total_bytes = 0;
	CUdeviceptr pointer;
	CUcontext context;
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

	if (driver) {
		init = (int)FIND(driver, cuInit)(0);
		if (init == 0 && FIND(driver, cuDeviceGet)(&device, 0) == 0)
			made = (int)FIND(driver, cuDevicePrimaryCtxRetain)(&context, device);
		if (made == 0 && FIND(driver, cuCtxSetCurrent)(context) == 0 &&
		    FIND(driver, cuMemGetInfo_v2)(&free_bytes, &total_bytes) == 0) {
			__typeof__(&cuMemAlloc_v2) alloc = FIND(driver, cuMemAlloc_v2);

			filled = (int)alloc(&pointer, free_bytes);
			more = (int)alloc(&pointer, MORE_BYTES);
		}
	}
	printf("{\"driver\": %s, \"euid\": %d, \"init\": %d, \"context\": %d, \"total\": %zu, "
	       "\"free\": %zu, "
	       "\"filled\": %d, \"more\": %d}\n",
	       driver ? "true" : "false", (int)geteuid(), init, made, total_bytes, free_bytes,
	       filled, more);
	fflush(stdout);
	if (argc > 1 && strcmp(argv[1], "hold") == 0)
		pause();
	return 0;
}
