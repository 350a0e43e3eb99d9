/* A library that an image preloads for itself. Tests look for its name in a process's maps. */

int own_library(void);

int own_library(void)
{
	return 1;
}
