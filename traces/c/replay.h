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
	word_function **functions, **direct; /* what programs find; the driver's own functions */
	const struct recorded_entry **recorded;
	struct recorded_answer *answer; /* recorded_driver.c's; for another driver a dummy */
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
 * Calls the step's entry in `functions`, and compares the outcome with the recording. Returns false
 * if the call was refused memory, but not in the recording.
 */
bool make(uint32_t step, word_function *const *functions);

void cost_of_runs(void);
void cost_of_part(uint32_t first, uint32_t last, uint32_t passes);

#endif
