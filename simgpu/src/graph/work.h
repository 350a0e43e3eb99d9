/* The work that a stream does or a graph records: copies, fills, calls of host functions. */
#ifndef SIMGPU_WORK_H
#define SIMGPU_WORK_H

#include <stddef.h>
#include <stdint.h>

enum side {
	SIDE_ANY,    /* of the host or of a device */
	SIDE_DEVICE, /* or pinned */
};

/* One end of a copy: its first byte, and the distance to the next row. */
struct place {
	enum side side;
	uint64_t address;
	size_t pitch;
};

struct transfer {
	struct place to, from;
	size_t width, height;	  /* bytes, rows */
	unsigned int value_bytes; /* 0: a copy; or a fill with so many bytes of `value` */
	uint32_t value;
};

/* A function of the program that a stream calls. */
struct host_call {
	void (*function)(void *);
	void *data;
};

#endif
