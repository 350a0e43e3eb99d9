/*
 * The layout of a script, which script.py writes, and the interface between replay.c and
 * recorded_driver.c.
 */
#ifndef TRACES_SCRIPT_H
#define TRACES_SCRIPT_H

#include "entries.h"

#define SCRIPT_MAGIC UINT64_C(0x6770737472616365) /* "gpstrace" */

enum argument_kind { VALUE, SLOT, DATA, CELL, BUFFER, IMAGE, POINTERS };
enum action { IGNORE, STORE, EQUAL, EQUAL_SLOT, EQUAL_SIZE };

/* A table's position: the upper half is its offset, the lower half its number of rows. */
typedef uint64_t script_table;

struct script {
	uint64_t magic, slots, buffer_bytes, image, threads;
	script_table entries, operations, arguments, results, patches, steps, runs, data;
	uint64_t reserved[3];
};

struct script_entry {
	uint64_t name, base; /* offsets in the data */
	uint32_t version, per_thread;
};

struct script_operation {
	uint32_t entry;
	int32_t result;
	uint32_t argument, written, patch; /* first row of the operation in each table */
	uint8_t arguments, writtens, patches, is_compared;
};

struct script_argument {
	uint32_t kind, slot;
	uint64_t value;
};

/* A value that the driver writes to an argument, and what the replay does with it. */
struct script_result {
	uint8_t action, argument, bytes, unused;
	uint32_t slot;
	uint64_t recorded, offset;
};

struct script_patch {
	uint64_t at;
	struct script_argument argument;
};

struct script_run {
	uint32_t thread, first, count, turn, is_checkpoint;
};

_Static_assert(sizeof(struct script) == 128 && sizeof(struct script_entry) == 24 &&
		   sizeof(struct script_operation) == 24 && sizeof(struct script_argument) == 16 &&
		   sizeof(struct script_result) == 24 && sizeof(struct script_patch) == 24 &&
		   sizeof(struct script_run) == 20,
	       "as script.py packs them");

/* An entry's name, and its function in recorded_driver.c. */
struct recorded_entry {
	const char *name;
	word_function *function;
};

/* What recorded_driver.c answers to the next call of `entry`. */
struct recorded_answer {
	const struct recorded_entry *entry;
	const struct script_operation *operation;
	const struct script_result *results;
};

#define RECORDED_ANSWER "recorded_answer" /* a struct recorded_answer, written before each call */
#define RECORDED_ENTRY	"recorded_entry"  /* const struct recorded_entry *(const char *name) */

#endif
