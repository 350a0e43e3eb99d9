/* A statically linked program, which no preload reaches, that runs another with no environment. */
#include <unistd.h>

int main(int argc, char **argv)
{
	char *nothing[] = {NULL};

	if (argc < 2)
		return 2;
	execve(argv[1], argv + 1, nothing);
	return 127;
}
