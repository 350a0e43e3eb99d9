/*
 * A library that audits the loader (rtld-audit(7)) and keeps it from finding gpuslice's library. It
 * needs no other library, which the loader would have to find first.
 */
#include <stdint.h>

unsigned int la_version(unsigned int version);
char *la_objsearch(char *name, uintptr_t *cookie, unsigned int flag);

unsigned int la_version(unsigned int version)
{
	return version;
}

char *la_objsearch(char *name, uintptr_t *cookie, unsigned int flag)
{
	(void)cookie;
	(void)flag;
	for (const char *at = name; *at; at++)
		if (at[0] == 'v' && at[1] == 'g' && at[2] == 'p' && at[3] == 'u')
			return 0;
	return name;
}
