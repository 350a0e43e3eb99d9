/*
 * The recorder. It passes a program's calls to the driver, and writes a line for each call
 * (data/README.md).
 *
 * A forwarder (gpuslice/contract/forwarder.py) with the driver's soname needs this library and then
 * the driver. Therefore a program finds these entries first, and other names in the driver. Only
 * data about calls is written: no code, no contents of memory, no strings.
 *
 * Environment:
 *   GPUSLICE_TRACE_DRIVER    the path of the driver's libcuda.so.1
 *   GPUSLICE_TRACE_ENTRIES   a file. Its lines with '#' are the header of every trace. Each other
 *                            line has an entry to record, and a token for each of its parameters
 *                            (signatures.py). Calls of other entries are only counted
 *   GPUSLICE_TRACE_DIR       the directory for each process's trace, PID.trace
 *
 * The recorder does nothing in a process before its first call. Every line is one write, so the
 * trace of a killed process has every call that had returned.
 */
#define _GNU_SOURCE
#include "record.h"
#include "entries.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NOT_FOUND = 500 };

struct row {
	const char *name;
	word_function *own, *real;
	char *tokens; /* of the parameters, each after a blank; NULL: entry not recorded */
	uint64_t unwritten;
};

#define ROW(symbol, base, since, per_thread)                                                       \
	static struct row row_##symbol = {.name = #symbol, .own = symbol};
#include "rows.h"

static struct {
	pthread_mutex_t lock;
	bool is_ready;
	int file;
	char *header;
	uint64_t start_us, calls;
	unsigned threads;
} recorder = {.lock = PTHREAD_MUTEX_INITIALIZER, .file = -1};

static __thread unsigned thread;

static void put(const struct text *text)
{
	if (write(recorder.file, text->bytes, text->length) != (ssize_t)text->length)
		fprintf(stderr, "gpuslice: a line of the trace is lost: %m\n");
}

static uint64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "gpuslice: %s: %s\n", what, dlerror());
	_exit(127);
}

static void begin_file(void)
{
	struct text text = {.length = 0};
	char path[4096];

	snprintf(path, sizeof(path), "%s/%ld.trace", getenv("GPUSLICE_TRACE_DIR"), (long)getpid());
	recorder.file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	recorder.start_us = now_us();
	add(&text, "%s# start monotonic_us=%llu pid=%ld\n", recorder.header,
	    (unsigned long long)recorder.start_us, (long)getpid());
	put(&text);
}

/* Runs in the child after fork. The child begins its own trace at its first call. */
static void forked(void)
{
	if (recorder.file >= 0)
		close(recorder.file);
	recorder.file = -1;
	recorder.calls = recorder.threads = thread = 0;
	pthread_mutex_init(&recorder.lock, NULL);
}

static void read_entries(FILE *file)
{
	char *line = NULL;
	size_t size = 0;
	struct text header = {.length = 0};

	while (getline(&line, &size, file) >= 0) {
		char *tokens = line + strcspn(line, " \n");
		bool has_tokens = *tokens == ' ';

		if (*line == '#') {
			add(&header, "%s", line);
			continue;
		}
		tokens[has_tokens ? strcspn(tokens, "\n") : 0] = '\0';
		for (size_t i = 0; i < ROWS; i++) {
			size_t length = strlen(rows[i]->name);

			if (strncmp(rows[i]->name, line, length) == 0 &&
			    (line[length] == ' ' || !line[length]))
				rows[i]->tokens = strdup(line + length);
		}
	}
	free(line);
	recorder.header = strdup(header.bytes);
}

static void get_ready(void)
{
	const char *driver = getenv("GPUSLICE_TRACE_DRIVER"),
		   *entries = getenv("GPUSLICE_TRACE_ENTRIES");
	void *real = driver ? dlopen(driver, RTLD_NOW | RTLD_LOCAL) : NULL;
	FILE *file = entries ? fopen(entries, "re") : NULL;

	if (!real || !file || !getenv("GPUSLICE_TRACE_DIR"))
		fail("this recorder is started by `python -m traces record`");
	for (size_t i = 0; i < ROWS; i++)
		*(void **)&rows[i]->real = dlsym(real, rows[i]->name);
	read_entries(file);
	fclose(file);
	pthread_atfork(NULL, NULL, forked);
	recorder.is_ready = true;
}

/* Returns the number of a call that begins. Opens the trace if this is the first call. */
static uint64_t begin_call(void)
{
	uint64_t number;

	pthread_mutex_lock(&recorder.lock);
	if (!recorder.is_ready)
		get_ready();
	if (recorder.file < 0)
		begin_file();
	if (!thread)
		thread = ++recorder.threads;
	number = ++recorder.calls;
	pthread_mutex_unlock(&recorder.lock);
	return number;
}

/* Replaces a function that the driver returns to the program by the recorder's function. */
static void stand_in(void **function)
{
	for (size_t i = 0; function && *function && i < ROWS; i++)
		if (*(void **)&rows[i]->real == *function) {
			memcpy(function, &rows[i]->own, sizeof(*function));
			return;
		}
}

static uint64_t call(struct row *row, const uint64_t *w)
{
	uint64_t number = begin_call(), result, begun_us = now_us() - recorder.start_us;
	struct text line = {.length = 0}, before = {.length = 0};

	if (row->tokens)
		add_arguments(&before, row->tokens, w);
	result = row->real
		     ? row->real(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10])
		     : NOT_FOUND;
	if (!row->tokens) {
		__atomic_add_fetch(&row->unwritten, 1, __ATOMIC_RELAXED);
		if (strncmp(row->name, "cuGetProcAddress", strlen("cuGetProcAddress")) == 0)
			stand_in((void **)(uintptr_t)w[1]);
		return result;
	}
	add(&line, "%llu %llu %u %s %d%s", (unsigned long long)number, (unsigned long long)begun_us,
	    thread, row->name, (int)result, before.bytes);
	add(&line, "%s", strpbrk(row->tokens, ">=") ? " >" : "");
	if (!(int)result)
		add_written(&line, row->tokens, w);
	add(&line, "\n");
	put(&line);
	return result;
}

__attribute__((destructor)) static void end(void)
{
	struct text text = {.length = 0};

	if (recorder.file < 0)
		return;
	add(&text, "# end us=%llu calls=%llu threads=%u not-written:",
	    (unsigned long long)(now_us() - recorder.start_us), (unsigned long long)recorder.calls,
	    recorder.threads);
	for (size_t i = 0; i < ROWS; i++)
		if (rows[i]->unwritten)
			add(&text, " %s=%llu", rows[i]->name,
			    (unsigned long long)rows[i]->unwritten);
	add(&text, "\n");
	put(&text);
}

#define EACH(symbol, base, since, per_thread)                                                      \
	uint64_t symbol(WORDS)                                                                     \
	{                                                                                          \
		return call(&row_##symbol, (const uint64_t[]){WORD_LIST});                         \
	}
#include "abi/cuda.def"
