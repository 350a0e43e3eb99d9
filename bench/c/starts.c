/*
 * Measures program starts with and without a preloaded library, alternately.
 *
 * usage: bench-starts one TIMES LIBRARY PROGRAM	from spawn to end: median microseconds
 *        bench-starts many PROCESSES LIBRARY PROGRAM	all alive at once: microseconds from the
 * first spawn to the first call of 99 % of them
 *
 * Prints WITHOUT, WITH and the ratio of a calibration loop's times, with to without.
 * The environment has the grant's directory and the driver's. posix_spawn is a vfork in glibc, so
 * the launcher's own size does not matter.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_VARIABLES = 1024, READY_FD = 3, END_FD = 4 };

static char *plain[MOST_VARIABLES], *preloaded[MOST_VARIABLES];

static void must(bool good, const char *what)
{
	if (good)
		return;
	perror(what);
	exit(1);
}

static double microseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* A loop that no library preloaded into the children can affect. */
static double calibration_us(void)
{
	static volatile uint64_t word;
	double from = microseconds();

	for (int i = 0; i < 20000; i++)
		word += (uint64_t)i;
	return microseconds() - from;
}

static int compare(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return (left > right) - (left < right);
}

static double part_of(double *values, size_t count, size_t percent)
{
	qsort(values, count, sizeof(*values), compare);
	return values[(count - 1) * percent / 100];
}

static pid_t spawn(char *program, bool with, const posix_spawn_file_actions_t *actions)
{
	char argument[] = "wait", *arguments[] = {program, actions ? argument : NULL, NULL};
	pid_t pid;

	must(posix_spawn(&pid, program, actions, NULL, arguments, with ? preloaded : plain) == 0,
	     program);
	return pid;
}

static void one(char *program, long times)
{
	double *took[2] = {calloc((size_t)times, sizeof(double)),
			   calloc((size_t)times, sizeof(double))};
	double calibration[2] = {1e9, 1e9}, now;

	for (long i = 0; i < 2 * times; i++) {
		double from = microseconds();
		int status;

		must(waitpid(spawn(program, i % 2, NULL), &status, 0) > 0 && status == 0, program);
		took[i % 2][i / 2] = microseconds() - from;
		now = calibration_us();
		calibration[i % 2] = now < calibration[i % 2] ? now : calibration[i % 2];
	}
	printf("%.2f %.2f %.3f\n", part_of(took[0], (size_t)times, 50),
	       part_of(took[1], (size_t)times, 50), calibration[1] / calibration[0]);
}

/* Above the descriptor numbers that the children use. */
static void raise_number(int *fd)
{
	int low = *fd;

	*fd = fcntl(low, F_DUPFD_CLOEXEC, 16);
	must(*fd >= 0, "fcntl");
	close(low);
}

static double many(char *program, long processes, bool with, double *calibration)
{
	double *ready = calloc((size_t)processes, sizeof(double)), from;
	posix_spawn_file_actions_t actions;
	int ready_pipe[2], end[2], status;
	char byte;

	must(pipe2(ready_pipe, O_CLOEXEC) == 0 && pipe2(end, O_CLOEXEC) == 0, "pipe");
	for (int i = 0; i < 2; i++) {
		raise_number(&ready_pipe[i]);
		raise_number(&end[i]);
	}
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ready_pipe[1], READY_FD);
	posix_spawn_file_actions_adddup2(&actions, end[0], END_FD);
	from = microseconds();
	for (long i = 0; i < processes; i++)
		spawn(program, with, &actions);
	close(ready_pipe[1]);
	for (long i = 0; i < processes; i++) {
		must(read(ready_pipe[0], &byte, 1) == 1, "a process ended early");
		ready[i] = microseconds() - from;
	}
	*calibration = calibration_us();
	close(end[1]);
	for (long i = 0; i < processes; i++)
		must(wait(&status) > 0 && status == 0, program);
	close(ready_pipe[0]);
	close(end[0]);
	posix_spawn_file_actions_destroy(&actions);
	return part_of(ready, (size_t)processes, 99);
}

int main(int argc, char **argv)
{
	static char preload[4096] = "LD_PRELOAD=";
	size_t count = 0;
	long number;

	if (argc != 5)
		return 2;
	number = atol(argv[2]);
	strncat(preload, argv[3], sizeof(preload) - 32);
	for (; environ[count] && count < MOST_VARIABLES - 2; count++)
		plain[count] = preloaded[count] = environ[count];
	preloaded[count] = preload;
	for (int i = 3; i < 16; i++)
		close(i);
	if (!strcmp(argv[1], "one")) {
		one(argv[4], number);
	} else {
		double calibration[2], took[2];

		for (int with = 0; with < 2; with++)
			took[with] = many(argv[4], number, with, &calibration[with]);
		printf("%.2f %.2f %.3f\n", took[0], took[1], calibration[1] / calibration[0]);
	}
	return 0;
}
