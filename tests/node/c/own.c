/* A library that an image preloads for itself: its name in a process's maps is all it is for. */

int own_library(void);

int own_library(void)
{
	return 1;
}
