/*
 * Runs the probe of a plugin that is linked with the driver, in a namespace of its own (dlmopen).
 * There the preloaded library's functions do not come first.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *plugin = argc > 1 ? dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW) : NULL;
	int (*probe)(int, char **) = plugin ? (int (*)(int, char **))dlsym(plugin, "probe") : NULL;

	if (!probe) {
		fprintf(stderr, "own_namespace: %s\n", dlerror());
		return 1;
	}
	return probe(argc - 1, argv + 1);
}
