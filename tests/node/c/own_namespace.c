/*
 * Runs the probe of a plugin that is linked with the driver, in a namespace of its own (dlmopen).
 * There the preloaded library's functions do not come first. If built with DEEP, it opens the
 * plugin with RTLD_DEEPBIND instead.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#ifdef DEEP
#define OPEN(path) dlopen(path, RTLD_NOW | RTLD_DEEPBIND)
#else
#define OPEN(path) dlmopen(LM_ID_NEWLM, path, RTLD_NOW)
#endif

int main(int argc, char **argv)
{
	void *plugin = argc > 1 ? OPEN(argv[1]) : NULL;
	int (*probe)(int, char **) = plugin ? (int (*)(int, char **))dlsym(plugin, "probe") : NULL;

	if (!probe) {
		fprintf(stderr, "own_namespace: %s\n", dlerror());
		return 1;
	}
	return probe(argc - 1, argv + 1);
}
