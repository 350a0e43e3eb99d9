/* Events, and what processes share of those that are made for it. */
#ifndef SIMGPU_EVENT_H
#define SIMGPU_EVENT_H

#include "driver.h"

/* When the event was recorded last, or will be reached; 0: never. Of all processes that share it.
 */
struct moment {
	uint64_t nonce; /* of a shared one */
	uint64_t reached_ns;
};

struct event {
	struct object object;
	struct context *context;
	unsigned int flags;
	struct moment own, *moment; /* its own, or a page that processes share */
	int fd;			    /* of that page, where this process made it; or -1 */
	CUstream captured_on;	    /* recorded there in a capture, which may be over */
	struct capture *capture;
};

/* event_share.c: gives an event a page that it can share; takes it away. */
bool event_share(struct event *event);
void event_unshare(struct event *event);

#endif
