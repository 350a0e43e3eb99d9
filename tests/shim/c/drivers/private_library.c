/*
 * A third-party library that exports a driver's name, as profilers and shims do, and looks up the
 * next definition behind itself.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

int cuMemAlloc_v2(unsigned long long *dptr, size_t bytes)
{
	*dptr = bytes;
	return 4242;
}

/* Not as a tail call: that would change the caller. */
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

/* As runtimes do: open the driver, and look the name up in it. */
void *private_driver(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW);

	return handle ? look(handle) : NULL;
}
