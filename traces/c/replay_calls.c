/*
 * Loads a script, finds the driver's entries, and makes the calls of the script's steps.
 */
#define _GNU_SOURCE
#include "replay.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int get_proc_address(const char *, void **, int, uint64_t, int *);
typedef uint64_t cell[2];

struct replay replay;

_Noreturn void fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("trace-replay: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	_exit(1);
}

void *map(const char *path, int protection, int flags)
{
	int descriptor = open(path, flags == MAP_SHARED ? O_RDWR : O_RDONLY);
	struct stat status;
	void *mapped;

	if (descriptor < 0 || fstat(descriptor, &status))
		fail("%s: %m", path);
	mapped = mmap(NULL, (size_t)status.st_size, protection, flags, descriptor, 0);
	if (mapped == MAP_FAILED)
		fail("%s: %m", path);
	close(descriptor);
	return mapped;
}

void *zeroed(uint64_t count, size_t bytes)
{
	void *made = calloc(count + 1, bytes);

	if (!made)
		fail("out of memory");
	return made;
}

static const void *table(script_table where, uint32_t *count)
{
	if (count)
		*count = (uint32_t)where;
	return replay.base + (where >> 32);
}

void load(const char *path)
{
	const struct script *script;

	replay.base = map(path, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_POPULATE);
	script = replay.script = (const struct script *)(void *)replay.base;
	if (script->magic != SCRIPT_MAGIC)
		fail("%s: not a script", path);
	replay.entries = table(script->entries, &replay.entry_count);
	replay.operations = table(script->operations, NULL);
	replay.arguments = table(script->arguments, NULL);
	replay.results = table(script->results, NULL);
	replay.patches = table(script->patches, NULL);
	replay.steps = table(script->steps, NULL);
	replay.runs = table(script->runs, &replay.run_count);
	replay.data = replay.base + (script->data >> 32);
	replay.slots = zeroed(script->slots, sizeof(*replay.slots));
	replay.functions = zeroed(replay.entry_count, sizeof(*replay.functions));
	replay.direct = zeroed(replay.entry_count, sizeof(*replay.direct));
	replay.recorded = zeroed(replay.entry_count, sizeof(*replay.recorded));
	replay.buffer = mmap(NULL, script->buffer_bytes, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (replay.buffer == MAP_FAILED)
		fail("%llu bytes of memory: %m", (unsigned long long)script->buffer_bytes);
}

void resolve(void)
{
	static struct recorded_answer unread;
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *found;
	const struct recorded_entry *(*recorded_entry)(const char *);
	get_proc_address *ask;
	int status;

	if (!driver)
		fail("%s", dlerror());
	*(void **)&ask = dlsym(driver, "cuGetProcAddress_v2");
	*(void **)&recorded_entry = dlsym(driver, RECORDED_ENTRY);
	replay.answer = dlsym(driver, RECORDED_ANSWER);
	if (!replay.answer)
		replay.answer = &unread;
	for (uint32_t i = 0; i < replay.entry_count; i++) {
		const char *name = replay.data + replay.entries[i].name,
			   *base = replay.data + replay.entries[i].base;
		uint64_t flags = replay.entries[i].per_thread ? 2 : 0;

		if (!ask || ask(base, &found, (int)replay.entries[i].version, flags, &status))
			found = NULL;
		if (!found)
			found = dlsym(driver, name);
		if (!found)
			fail("the driver has no %s", name);
		*(void **)&replay.functions[i] = found;
		if (recorded_entry) {
			const struct recorded_entry *own = recorded_entry(name);

			replay.recorded[i] = own;
			replay.direct[i] = own->function;
		}
	}
}

static uint64_t argument(const struct script_argument *of, cell *cells, uint32_t index)
{
	static char elsewhere[64][16];
	static void *pointers[64];

	switch ((enum argument_kind)of->kind) {
	case VALUE:
		return of->value;
	case SLOT:
		return replay.slots[of->slot] + of->value;
	case DATA:
		return (uint64_t)(uintptr_t)(replay.data + of->value);
	case CELL:
		cells[index][0] = of->value;
		return (uint64_t)(uintptr_t)cells[index];
	case BUFFER:
		return (uint64_t)(uintptr_t)replay.buffer;
	case IMAGE:
		return (uint64_t)(uintptr_t)(replay.data + replay.script->image);
	case POINTERS:
		for (int i = 0; i < 64; i++)
			pointers[i] = elsewhere[i];
		return (uint64_t)(uintptr_t)pointers;
	}
	fail("an argument of kind %u", of->kind);
}

static uint64_t low(uint64_t value, unsigned bytes)
{
	return bytes < 8 ? value & ((UINT64_C(1) << 8 * bytes) - 1) : value;
}

static void difference(uint32_t step, int result, int of, uint64_t value)
{
	printf("difference %u %d %d %llu\n", step, result, of, (unsigned long long)value);
}

static void returned(uint32_t step, int result, const struct script_result *of, cell *cells)
{
	uint64_t value = low(cells[of->argument][0], of->bytes);
	bool is_equal = true;

	switch ((enum action)of->action) {
	case IGNORE:
		break;
	case STORE:
		replay.slots[of->slot] = value;
		break;
	case EQUAL_SIZE:
		is_equal =
		    replay.is_other_size || value - of->recorded + of->offset <= 2 * of->offset;
		break;
	case EQUAL:
		is_equal = value == low(of->recorded, of->bytes);
		break;
	case EQUAL_SLOT:
		is_equal = value == replay.slots[of->slot] + of->offset;
		break;
	}
	if (!is_equal)
		difference(step, result, of->argument, value);
}

bool make(uint32_t step, word_function *const *functions)
{
	const struct script_operation *it = &replay.operations[replay.steps[step]];
	const struct script_argument *given = &replay.arguments[it->argument];
	const struct script_result *results = &replay.results[it->written];
	uint64_t a[WORD_COUNT] = {0};
	cell cells[WORD_COUNT];
	int result;

	for (uint32_t i = 0; i < it->arguments; i++)
		a[i] = argument(&given[i], cells, i);
	for (uint32_t i = 0; i < it->patches; i++) {
		const struct script_patch *patch = &replay.patches[it->patch + i];
		uint64_t value = argument(&patch->argument, cells, 0);

		memcpy(replay.data + patch->at, &value, sizeof(value));
	}
	*replay.answer = (struct recorded_answer){replay.recorded[it->entry], it, results};
	result = (int)functions[it->entry](a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8],
					   a[9], a[10]);
	if (result == OUT_OF_MEMORY && it->result != result && replay.is_other_size)
		return false;
	if (it->is_compared && result != it->result)
		difference(step, result, -1, 0);
	else if (result == 0)
		for (uint32_t i = 0; i < it->writtens; i++)
			returned(step, result, &results[i], cells);
	return true;
}
