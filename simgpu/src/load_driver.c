/* See load_driver.h. */
#include "load_driver.h"

#include <dlfcn.h>

struct load_functions cu;

void *open_driver(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	const char *missing = driver ? NULL : "libcuda.so.1";

#define X(name, params)                                                                            \
	if (driver && !(*(void **)&cu.name = dlsym(driver, #name)))                                \
		missing = #name;
	ENTRIES(X)
#undef X
	if (missing) {
		fprintf(stderr, "cuda-load: %s is missing\n", missing);
		exit(1);
	}
	return driver;
}
