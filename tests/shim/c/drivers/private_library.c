/*
 * A third-party library that exports a function with the name of a driver's function, as profilers
 * do. It also looks up the next definition of that function.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

int cuMemAlloc_v2(unsigned long long *dptr, size_t bytes)
{
	*dptr = bytes;
	return 4242;
}

/* `volatile` prevents a tail call of dlsym. dlsym identifies its caller by the return address. */
static void *look(void *volatile handle)
{
	void *volatile found = dlsym(handle, "cuMemAlloc_v2");

	return found;
}

void *private_next(void)
{
	return look(RTLD_NEXT);
}

void *private_default(void)
{
	return look(RTLD_DEFAULT);
}

/* Open the driver and look the name up in it, as CUDA runtimes do. */
void *private_driver(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW);

	return handle ? look(handle) : NULL;
}
