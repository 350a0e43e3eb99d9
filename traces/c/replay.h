/*
 * Declarations for the files of trace-replay: the loaded script, the driver, and a step's call.
 */
#ifndef TRACES_REPLAY_H
#define TRACES_REPLAY_H

#include <stdbool.h>
#include <stddef.h>

#include "script.h"

#define OUT_OF_MEMORY 2

struct replay {
	char *base;
	const struct script *script;
	const struct script_entry *entries;
	const struct script_operation *operations;
	const struct script_argument *arguments;
	const struct script_result *results;
	const struct script_patch *patches;
	const uint32_t *steps;
	const struct script_run *runs;
	uint32_t run_count, entry_count;
	char *data, *buffer;
	uint64_t *slots;
	word_function **functions, **direct; /* as programs find them; those of the driver itself */
	const struct recorded_entry **recorded;
	struct recorded_answer *answer; /* in recorded_driver.c; a dummy for another driver */
	bool is_other_size;
};

extern struct replay replay;

__attribute__((format(printf, 1, 2))) _Noreturn void fail(const char *format, ...);
void *map(const char *path, int protection, int flags);
void *zeroed(uint64_t count, size_t bytes);

void load(const char *path);

/* Finds every entry like NVIDIA's runtime: by dlopen, then cuGetProcAddress. */
void resolve(void);

/*
 * Makes the call of a step by these functions, and compares the outcome with the recording. Returns
 * false if the call was refused memory, but not in the recording.
 */
bool make(uint32_t step, word_function *const *functions);

void cost_of_runs(void);
void cost_of_part(uint32_t first, uint32_t last, uint32_t passes);

#endif
