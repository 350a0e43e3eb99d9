/*
 * Stands between a program and the driver, and writes a line for every call: see data/README.md.
 *
 * It has no soname of its own: a forwarder (contract/forwarder.py) with the driver's soname needs
 * it and then the driver, so that a program finds these entries first and the driver's others
 * behind them. Data about calls alone is written: no code, no contents of memory, no strings.
 *
 * Environment:
 *   GPUSLICE_TRACE_DRIVER    the driver's own libcuda.so.1
 *   GPUSLICE_TRACE_ENTRIES   lines that begin with '#' and open every trace; then one line for each
 *                            entry that is written: its name, and a token for each parameter
 *                            (signatures.py). Calls of other entries are counted
 *   GPUSLICE_TRACE_DIR       where each process writes its trace, PID.trace
 *
 * Nothing happens in a process before its first call. Every line is one write, so that the trace of
 * a process that is killed has every call that returned.
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
	char *tokens; /* of its parameters, each after a blank; NULL: not written */
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

/* The child begins a trace of its own with its first call. */
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

/* The number of a call that begins; the file is open after it. */
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

/* A function pointer returned to the program leads through the recorder, too. */
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
