/* See mark.h. */
#include "base/mark.h"

#include "base/driver.h"
#include "client/channel.h"

/* The longest sleep. Other contexts' work may end early, so a wait must predict again. */
#define LOOK_NS 10000000u

static struct sim_link *link_of(const struct position *position)
{
	return driver.device[position->device].link;
}

static bool is_done(const struct position *position)
{
	return sim_is_done(link_of(position), position->queue, position->number);
}

static bool is_same_queue(const struct position *a, const struct position *b)
{
	return a->queue == b->queue && a->device == b->device;
}

static bool is_same_context(const struct position *a, const struct position *b)
{
	return a->queue / SIM_QUEUES == b->queue / SIM_QUEUES && a->device == b->device;
}

static void raise_to(uint64_t *value, uint64_t at_least)
{
	if (*value < at_least)
		*value = at_least;
}

static void drop_done(struct mark *mark)
{
	unsigned int kept = 0;

	for (unsigned int i = 0; i < mark->count; i++)
		if (!is_done(&mark->at[i]))
			mark->at[kept++] = mark->at[i];
	mark->count = kept;
}

static uint64_t predict_ns(const struct position *position)
{
	return sim_predict_ns(link_of(position), position->queue, position->number);
}

void mark_add_position(struct mark *mark, struct position position)
{
	for (unsigned int i = 0; i < mark->count; i++) {
		if (is_same_queue(&mark->at[i], &position)) {
			raise_to(&mark->at[i].number, position.number);
			return;
		}
	}
	if (is_done(&position))
		return;
	if (mark->count == MARK_POSITIONS)
		drop_done(mark);
	if (mark->count == MARK_POSITIONS)
		raise_to(&mark->not_before_ns, predict_ns(&position));
	else
		mark->at[mark->count++] = position;
}

void mark_add(struct mark *mark, const struct mark *other)
{
	for (unsigned int i = 0; i < other->count; i++)
		mark_add_position(mark, other->at[i]);
	raise_to(&mark->not_before_ns, other->not_before_ns);
}

static bool positions_done(const struct mark *mark)
{
	for (unsigned int i = 0; i < mark->count; i++)
		if (!is_done(&mark->at[i]))
			return false;
	return true;
}

bool mark_seen(const struct mark *mark)
{
	return positions_done(mark) && (!mark->not_before_ns || mark->not_before_ns <= now_ns());
}

uint64_t mark_reached_ns(const struct mark *mark)
{
	uint64_t reached_ns = mark->not_before_ns;

	for (unsigned int i = 0; i < mark->count; i++)
		raise_to(&reached_ns,
			 sim_done_ns(link_of(&mark->at[i]), mark->at[i].queue, mark->at[i].number));
	return reached_ns;
}

void marks_look(void)
{
	for (int i = 0; i < driver.devices; i++)
		if (__atomic_load_n(&driver.device[i].used, __ATOMIC_ACQUIRE))
			sim_look(driver.device[i].link);
}

bool mark_is_reached(const struct mark *mark)
{
	for (unsigned int i = 0; i < mark->count; i++)
		if (!is_done(&mark->at[i]))
			sim_look(link_of(&mark->at[i]));
	return mark_seen(mark);
}

uint64_t mark_predict_ns(const struct mark *mark, const struct position *own)
{
	uint64_t until_ns = 0;

	for (unsigned int i = 0; i < mark->count; i++)
		if (!(own && is_same_context(&mark->at[i], own)) && !is_done(&mark->at[i]))
			raise_to(&until_ns, predict_ns(&mark->at[i]));
	if (mark->not_before_ns && mark->not_before_ns > now_ns())
		raise_to(&until_ns, mark->not_before_ns);
	return until_ns;
}

void mark_items(const struct mark *mark, const struct position *own, uint64_t items[])
{
	for (unsigned int i = 0; i < mark->count; i++)
		if (is_same_context(&mark->at[i], own))
			items[mark->at[i].queue % SIM_QUEUES] = mark->at[i].number;
}

static bool is_alive(const struct mark *mark)
{
	for (unsigned int i = 0; i < mark->count; i++)
		if (!sim_link_alive(link_of(&mark->at[i])))
			return false;
	return true;
}

void mark_wait(const struct mark *mark)
{
	uint64_t until_ns;

	while ((until_ns = mark_predict_ns(mark, NULL)) && is_alive(mark)) {
		uint64_t again_ns = now_ns() + LOOK_NS;

		wait_until_ns(until_ns < again_ns ? until_ns : again_ns);
	}
}
