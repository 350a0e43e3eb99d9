/*
 * cuda-probe, of the lab's images: what a program in a container can take of GPU 0, as one JSON
 * line: the codes of cuInit, of the first context, of an allocation of all that the driver reports
 * free, and of 512 bytes more. With `hold` it then stays. It loads the driver by dlopen alone, as
 * programs with a statically linked runtime do; built with LINKED, it is linked with the driver.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef int (*init_fn)(unsigned int flags);
typedef int (*device_fn)(int *device, int ordinal);
typedef int (*retain_fn)(void **context, int device);
typedef int (*current_fn)(void *context);
typedef int (*info_fn)(size_t *free_bytes, size_t *total_bytes);
typedef int (*alloc_fn)(unsigned long long *pointer, size_t bytes);

enum { NOT_TRIED = -1, MORE_BYTES = 512 };

#ifdef LINKED
int cuInit(unsigned int flags);
int cuDeviceGet(int *device, int ordinal);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);
#define ENTRY(driver, name) name
#else
#define ENTRY(driver, name) entry(driver, #name)

static void *entry(void *driver, const char *name)
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
	unsigned long long pointer;
	void *context;
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

	if (driver) {
		init = ((init_fn)ENTRY(driver, cuInit))(0);
		if (init == 0 && ((device_fn)ENTRY(driver, cuDeviceGet))(&device, 0) == 0)
			made =
			    ((retain_fn)ENTRY(driver, cuDevicePrimaryCtxRetain))(&context, device);
		if (made == 0 && ((current_fn)ENTRY(driver, cuCtxSetCurrent))(context) == 0 &&
		    ((info_fn)ENTRY(driver, cuMemGetInfo_v2))(&free_bytes, &total_bytes) == 0) {
			alloc_fn alloc = (alloc_fn)ENTRY(driver, cuMemAlloc_v2);

			filled = alloc(&pointer, free_bytes);
			more = alloc(&pointer, MORE_BYTES);
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
