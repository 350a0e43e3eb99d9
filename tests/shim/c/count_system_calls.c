/* Run a program to its end and print how many system calls it made: count-system-calls PROGRAM */
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	long stops = 0;
	int status;
	pid_t pid = fork();

	if (argc < 2 || pid < 0)
		return 2;
	if (pid == 0) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		execv(argv[1], argv + 1);
		_exit(127);
	}
	while (waitpid(pid, &status, 0) == pid && !WIFEXITED(status) && !WIFSIGNALED(status)) {
		stops++;
		ptrace(PTRACE_SYSCALL, pid, NULL, NULL);
	}
	printf("%ld\n", stops / 2); /* each system call stops the program twice */
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
