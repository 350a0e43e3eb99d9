/*
 * cuda-load keeps GPU 0 busy in a chosen way, and prints how much work was done. See --help.
 *
 * It prints "ready" at the start. Once a second and at the end it prints the seconds since the
 * start, the finished launches, and their work in percent of the time. Streams that run at the same
 * time add up. The last lines have the times between launches ("best" is the least mean between two
 * marks, see below), and of steps.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "load/work.h"

enum {
	MARKS = 256, /* limit of unfinished marks */
	SECOND_NS = 1000000000,
	QUEUED_NS = 200000000, /* limit of unfinished work, without the two latest marks */
	MARK_NS = 250000,      /* work from one mark to the next */
	SPIN_NS = 200000,      /* a shorter pause does not sleep, as sleeping takes 60 us longer */
	TIMES = 1 << 20,       /* the first times, which are kept */
};

static const char usage[] =
    "usage: cuda-load SECONDS KERNEL_US [OPTION...]\n"
    "Launches kernels of KERNEL_US one after the other, as fast as the GPU takes them.\n"
    "  --mode MODE    launch, graph (of 20 kernels), cooperative, ex (with attributes), cluster\n"
    "                 (as ex, in clusters of two blocks), runtime (as NVIDIA's runtime), copy\n"
    "  --kinds N      N different kernels in turn (1 to 256)\n"
    "  --to-us US     the kinds take from KERNEL_US to US\n"
    "  --step N       wait for the GPU after each N launches, and print the steps' times\n"
    "  --gap-us US    work of the CPU after each launch\n"
    "  --pause-us US  work of the CPU after each step\n"
    "  --streams N    launch on N streams in turn (1 to 16)\n"
    "  --blocks N     blocks of a launch\n"
    "  --beside WHAT  on one more stream all the time: copy, or kernels of WHAT us\n"
    "A program that waits for each kernel:      cuda-load 10 200 --step 1\n"
    "A language model's decode steps:           cuda-load 10 5 --to-us 20 --kinds 15"
    " --step 300 --gap-us 35 --pause-us 600\n"
    "Training, with a prefetch of the data:     cuda-load 10 5 --to-us 60 --kinds 150"
    " --step 200 --beside copy\n";

static struct {
	struct work_options work;
	uint64_t duration_ns, gap_ns, pause_ns, step; /* step 0: no waits */
} load = {.work = {.mode = "launch", .kinds = 1, .streams = 1, .blocks = 1}};

struct times {
	uint32_t ns[TIMES];
	uint64_t count;
};

static struct times between_launches, of_steps;
static double best_ns = 1e18; /* the least mean time of a launch between two marks */

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

static void spend(uint64_t ns)
{
	uint64_t until_ns = ns ? now_ns() + ns : 0;

	if (ns >= SPIN_NS)
		nanosleep(&(struct timespec){(time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS)},
			  NULL);
	while (until_ns && now_ns() < until_ns)
		;
}

static void add_time(struct times *times, uint64_t ns)
{
	if (times->count < TIMES)
		times->ns[times->count++] = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
}

static int compare(const void *a, const void *b)
{
	uint32_t one = *(const uint32_t *)a, other = *(const uint32_t *)b;

	return (one > other) - (one < other);
}

static void print_times(struct times *times)
{
	uint64_t count = times->count;

	qsort(times->ns, count, sizeof(*times->ns), compare);
	printf("p50 %.1f us, p99 %.1f us, longest %.1f us\n", times->ns[count / 2] / 1e3,
	       times->ns[count * 99 / 100] / 1e3, times->ns[count - 1] / 1e3);
}

/* Marks: events with the number of launches before each, oldest first. */
static struct {
	CUevent event;
	uint64_t launches;
} marks[MARKS];
static uint64_t first_mark, next_mark, finished, marks_most;

static void look_at_marks(bool wait_for_one)
{
	while (first_mark < next_mark &&
	       work_is_done(marks[first_mark % MARKS].event, wait_for_one)) {
		finished += marks[first_mark++ % MARKS].launches;
		wait_for_one = false;
	}
}

static void mark(CUstream stream, uint64_t launches)
{
	if (next_mark - first_mark == marks_most)
		look_at_marks(true);
	if (!marks[next_mark % MARKS].event)
		marks[next_mark % MARKS].event = work_event();
	marks[next_mark % MARKS].launches = launches;
	work_record(marks[next_mark++ % MARKS].event, stream);
	look_at_marks(false);
}

static void print(const char *what, uint64_t elapsed_ns, uint64_t launches, uint64_t of_ns)
{
	printf("%s %.2f s: %llu launches, %.2f %% of the time\n", what, (double)elapsed_ns / 1e9,
	       (unsigned long long)launches,
	       100.0 * (double)launches * (double)work_launch_ns() / (double)of_ns);
	fflush(stdout);
}

/* The launches from one mark to the next. Each stream gets marks in turn. */
static uint64_t batch_launches(void)
{
	uint64_t launch_ns = work_launch_ns() ? work_launch_ns() : 1;
	uint64_t streams = (uint64_t)load.work.streams;

	if (load.step)
		return load.step;
	return MARK_NS / launch_ns / streams * streams + 1;
}

/* A batch has been submitted since `from_ns`. Returns when the next batch begins. */
static uint64_t end_batch(CUstream stream, uint64_t launches, uint64_t from_ns)
{
	uint64_t took_ns;

	if (load.step) {
		work_wait();
		finished += launches;
	} else {
		mark(stream, launches);
	}
	took_ns = now_ns() - from_ns;
	if ((double)took_ns < best_ns * (double)launches)
		best_ns = (double)took_ns / (double)launches;
	if (load.step)
		add_time(&of_steps, took_ns);
	spend(load.pause_ns);
	return now_ns();
}

static void run(void)
{
	uint64_t start_ns = now_ns(), at_ns = start_ns, printed_ns = start_ns, before = 0;
	uint64_t batch = batch_launches(), second_ns = start_ns + SECOND_NS;
	uint64_t batch_from_ns = start_ns, from_ns;

	marks_most = QUEUED_NS / (batch * work_launch_ns() + 1) + 2;
	if (marks_most > MARKS)
		marks_most = MARKS;
	for (uint64_t number = 0; at_ns < start_ns + load.duration_ns;) {
		CUstream stream = work_launch(number++);

		work_beside();
		if (number % batch == 0)
			batch_from_ns = end_batch(stream, batch, batch_from_ns);
		spend(load.gap_ns);
		from_ns = at_ns;
		at_ns = now_ns();
		add_time(&between_launches, at_ns - from_ns);
		if (at_ns >= second_ns) {
			print("after", at_ns - start_ns, finished - before, at_ns - printed_ns);
			before = finished;
			printed_ns = at_ns;
			second_ns += SECOND_NS;
		}
	}
	print("total", at_ns - start_ns, finished, at_ns - start_ns);
	printf("launch to launch: best %.1f ns, ", best_ns);
	print_times(&between_launches);
	if (of_steps.count) {
		printf("steps: %llu, ", (unsigned long long)of_steps.count);
		print_times(&of_steps);
	}
	if (load.work.beside)
		printf("beside: %llu launches\n", (unsigned long long)work_beside_count());
	work_wait();
}

static uint64_t ns_of(const char *us)
{
	return (uint64_t)(atof(us) * 1e3);
}

static bool is_between(const char *what, int value, int most)
{
	if (value >= 1 && value <= most)
		return true;
	fprintf(stderr, "cuda-load: %s: invalid value %d: must be 1 to %d\n", what, value, most);
	return false;
}

static bool read_options(int count, char **arguments)
{
	static const struct option options[] = {
	    {"mode", 1, NULL, 'm'},    {"kinds", 1, NULL, 'k'},	 {"to-us", 1, NULL, 't'},
	    {"step", 1, NULL, 'w'},    {"gap-us", 1, NULL, 'g'}, {"pause-us", 1, NULL, 'p'},
	    {"streams", 1, NULL, 's'}, {"blocks", 1, NULL, 'b'}, {"beside", 1, NULL, 'o'},
	    {"help", 0, NULL, 'h'},    {NULL, 0, NULL, 0},
	};
	const char *to_us = NULL;
	int option;

	while ((option = getopt_long(count, arguments, "", options, NULL)) != -1) {
		switch (option) {
		case 'm':
			load.work.mode = optarg;
			break;
		case 'k':
			load.work.kinds = atoi(optarg);
			break;
		case 't':
			to_us = optarg;
			break;
		case 'w':
			load.step = strtoull(optarg, NULL, 10);
			break;
		case 'g':
			load.gap_ns = ns_of(optarg);
			break;
		case 'p':
			load.pause_ns = ns_of(optarg);
			break;
		case 's':
			load.work.streams = atoi(optarg);
			break;
		case 'b':
			load.work.blocks = (unsigned int)atoi(optarg);
			break;
		case 'o':
			load.work.beside = optarg;
			break;
		default:
			return false;
		}
	}
	if (count - optind != 2)
		return false;
	load.duration_ns = (uint64_t)(atof(arguments[optind]) * 1e9);
	load.work.from_ns = ns_of(arguments[optind + 1]);
	load.work.to_ns = to_us ? ns_of(to_us) : load.work.from_ns;
	return is_between("--streams", load.work.streams, MOST_STREAMS) &&
	       is_between("--kinds", load.work.kinds, MOST_KINDS);
}

int main(int count, char **arguments)
{
	if (!read_options(count, arguments)) {
		fputs(usage, stderr);
		return 2;
	}
	work_prepare(&load.work);
	printf("ready\n");
	fflush(stdout);
	run();
	return 0;
}
