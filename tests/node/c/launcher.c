/* Runs another program with no environment. It is static, so that no preload reaches it. */
#include <unistd.h>

int main(int argc, char **argv)
{
	char *nothing[] = {NULL};

	if (argc < 2)
		return 2;
	execve(argv[1], argv + 1, nothing);
	return 127;
}
