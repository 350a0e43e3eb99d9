/* Events, and the shared state of those created for several processes. */
#ifndef SIMGPU_EVENT_H
#define SIMGPU_EVENT_H

#include "base/driver.h"

/* When the event was recorded last, or will be reached; 0: never. Shared by all its processes. */
struct moment {
	uint64_t nonce; /* of a shared one */
	uint64_t reached_ns;
};

struct event {
	struct object object;
	struct context *context;
	unsigned int flags;
	struct moment own, *moment; /* its own, or a page that processes share */
	int fd;			    /* of that page, if this process made it; or -1 */
	CUstream captured_on;	    /* recorded there in a capture, which may be over */
	struct capture *capture;
};

/* event_share.c: assigns a shareable page to an event; removes it. */
bool event_share(struct event *event);
void event_unshare(struct event *event);

#endif
