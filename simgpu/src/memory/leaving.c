/* See leaving.h. */
#include "memory/leaving.h"

#include <stdlib.h>

#include "base/arena.h"

static struct leaving {
	struct leaving *next;
	struct device *device;
	struct range *range;
	struct mark ready;
} *all;

void leaving_add(struct device *device, struct range *range, const struct mark *ready)
{
	struct leaving *leaving = must(malloc(sizeof(*leaving)));

	*leaving = (struct leaving){all, device, range, *ready};
	range->leaving = true;
	all = leaving;
}

/* Ends one freed range. Stores the id of memory to free, or 0 if the range's block remains. */
static bool take_one(const struct device *device, uint64_t *id)
{
	for (struct leaving **link = &all; *link; link = &(*link)->next) {
		struct leaving *leaving = *link;

		if (leaving->device != device || !mark_seen(&leaving->ready))
			continue;
		*link = leaving->next;
		*id = memory_end(leaving->device, leaving->range);
		free(leaving);
		return true;
	}
	return false;
}

bool leaving_go(struct device *device)
{
	bool any = false, more;
	uint64_t id;

	marks_look();
	do {
		driver_lock();
		more = take_one(device, &id);
		driver_unlock();
		if (more && id)
			device_give_back(device, id);
		any |= more;
	} while (more);
	return any;
}

void leaving_forget(const struct context *context)
{
	struct leaving **link = &all;

	while (*link) {
		struct leaving *leaving = *link;

		if (leaving->range->context == context->object.serial) {
			*link = leaving->next;
			free(leaving);
		} else {
			link = &leaving->next;
		}
	}
}
