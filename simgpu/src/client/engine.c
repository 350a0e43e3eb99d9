/* See engine.h. */
#include "client/engine.h"

#include <stddef.h>

#define NO_CHANNEL UINT32_MAX

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static void set_pending(struct sim_board *board, uint32_t channel, bool pending)
{
	uint64_t bit = 1ull << channel % 64;

	if (pending)
		board->pending[channel / 64] |= bit;
	else
		board->pending[channel / 64] &= ~bit;
}

static bool is_pending(const struct sim_board *board, uint32_t channel)
{
	return board->pending[channel / 64] >> channel % 64 & 1;
}

/* The first pending channel at or after `from`, or NO_CHANNEL. `from` may be SIM_CHANNELS. */
static uint32_t next_pending(const struct sim_board *board, uint32_t from)
{
	while (from < SIM_CHANNELS) {
		uint64_t bits = board->pending[from / 64] >> from % 64;

		if (bits)
			return from + (uint32_t)__builtin_ctzll(bits);
		from = (from / 64 + 1) * 64;
	}
	return NO_CHANNEL;
}

static bool is_alone(const struct sim_board *board)
{
	uint32_t first = next_pending(board, 0);

	return first == NO_CHANNEL || next_pending(board, first + 1) == NO_CHANNEL;
}

static bool has_items(const struct sim_channel *channel, unsigned int queue)
{
	return channel->completed[queue] < channel->submitted[queue];
}

static const struct sim_item *item_at(const struct sim_channel *channel, unsigned int queue,
				      uint64_t number)
{
	return &channel->queues[queue].items[number % SIM_PENDING];
}

/* The unfinished item that starts first, or NULL. */
static const struct sim_item *first_item(const struct sim_channel *channel)
{
	const struct sim_item *first = NULL, *item;

	for (unsigned int queue = 0; queue < SIM_QUEUES; queue++) {
		if (!has_items(channel, queue))
			continue;
		item = item_at(channel, queue, channel->completed[queue] + 1);
		if (!first || item->start_ns < first->start_ns)
			first = item;
	}
	return first;
}

/* How long the context must run until all its items are done. */
static uint64_t left_ns(const struct sim_channel *channel)
{
	uint64_t end_ns = channel->ran_ns;

	for (unsigned int queue = 0; queue < SIM_QUEUES; queue++)
		if (has_items(channel, queue))
			end_ns = most(end_ns,
				      item_at(channel, queue, channel->submitted[queue])->end_ns);
	return end_ns - channel->ran_ns;
}

static bool has_ended(const struct sim_channel *channel, uint64_t at_ns)
{
	uint64_t ended_ns = __atomic_load_n(&channel->ended_ns, __ATOMIC_ACQUIRE);

	return ended_ns && ended_ns <= at_ns;
}

static void complete(struct sim_channel *channel, unsigned int queue, uint64_t number)
{
	__atomic_store_n(&channel->completed[queue], number, __ATOMIC_RELEASE);
}

/* Whether the channel's first item may run. If not, lowers `*earliest_ns` to its beginning. */
static bool is_ready(struct sim_shared *shared, uint32_t index, uint64_t at_ns,
		     uint64_t *earliest_ns)
{
	struct sim_channel *channel = &shared->channels[index];
	const struct sim_item *first;

	if (has_ended(channel, at_ns))
		for (unsigned int queue = 0; queue < SIM_QUEUES; queue++)
			complete(channel, queue, channel->submitted[queue]);
	first = first_item(channel);
	if (!first) {
		set_pending(&shared->board, index, false);
		return false;
	}
	if (first->start_ns <= channel->ran_ns)
		return true;
	/* Nothing of the context runs, so its clock stands still until the item begins. */
	if (first->earliest_ns <= at_ns) {
		channel->ran_ns = first->start_ns;
		return true;
	}
	*earliest_ns = least(*earliest_ns, first->earliest_ns);
	return false;
}

/* Chooses the next ready channel in turn and gives it a new slice. NO_CHANNEL: none is ready. */
static uint32_t choose(struct sim_shared *shared, uint64_t *earliest_ns)
{
	struct sim_board *board = &shared->board;
	uint32_t current = board->current % SIM_CHANNELS, index;

	index = next_pending(board, current + 1);
	while (index != NO_CHANNEL && !is_ready(shared, index, board->now_ns, earliest_ns))
		index = next_pending(board, index + 1);
	if (index == NO_CHANNEL) {
		index = next_pending(board, 0);
		while (index <= current && !is_ready(shared, index, board->now_ns, earliest_ns))
			index = next_pending(board, index + 1);
		if (index > current)
			return NO_CHANNEL;
	}
	board->current = index;
	board->slice_end_ns = board->now_ns + board->time_slice_ns;
	return index;
}

/* Completes the queue's items that are done. Returns when it has something to do next. */
static uint64_t run_queue(struct sim_channel *channel, unsigned int queue, uint64_t at_ns)
{
	while (has_items(channel, queue)) {
		uint64_t number = channel->completed[queue] + 1;
		const struct sim_item *item = item_at(channel, queue, number);

		if (item->end_ns > channel->ran_ns)
			return item->start_ns > channel->ran_ns ? item->start_ns : item->end_ns;
		channel->queues[queue].finished_ns[number % SIM_HISTORY] = at_ns;
		complete(channel, queue, number);
	}
	return UINT64_MAX;
}

/* Runs the channel's items from one instant to another. Returns when the last of them stopped. */
static uint64_t run(struct sim_channel *channel, uint64_t at_ns, uint64_t until_ns)
{
	for (;;) {
		uint64_t next_ns = UINT64_MAX, step_ns;
		const struct sim_item *first;

		for (unsigned int queue = 0; queue < SIM_QUEUES; queue++)
			next_ns = least(next_ns, run_queue(channel, queue, at_ns));
		first = first_item(channel);
		if (!first || first->start_ns > channel->ran_ns || at_ns == until_ns)
			return at_ns;
		step_ns = least(next_ns - channel->ran_ns, until_ns - at_ns);
		at_ns += step_ns;
		channel->ran_ns += step_ns;
	}
}

static void count_busy(struct sim_busy *rows, uint64_t from_ns, uint64_t to_ns)
{
	const uint64_t all_ns = (uint64_t)SIM_BUCKETS * SIM_BUCKET_NS;

	if (to_ns - from_ns > all_ns)
		from_ns = to_ns - all_ns;
	while (from_ns < to_ns) {
		uint64_t bucket = from_ns / SIM_BUCKET_NS;
		uint64_t end_ns = least(to_ns, (bucket + 1) * SIM_BUCKET_NS);
		struct sim_busy *row = &rows[bucket % SIM_BUCKETS];

		if (row->bucket != (uint32_t)bucket)
			*row = (struct sim_busy){.bucket = (uint32_t)bucket};
		row->busy_ns += (uint32_t)(end_ns - from_ns);
		from_ns = end_ns;
	}
}

/* Simulates one turn of a channel, or an interval without work. Returns false if none is left. A
 * ready channel always makes progress, so turns end. */
static bool turn(struct sim_shared *shared, uint64_t now_ns)
{
	struct sim_board *board = &shared->board;
	uint64_t at_ns = board->now_ns, until_ns = now_ns, ended_ns, came_ns;
	uint64_t earliest_ns = UINT64_MAX;
	uint32_t index = board->current % SIM_CHANNELS;
	struct sim_channel *channel;

	if (at_ns >= board->slice_end_ns || !is_pending(board, index) ||
	    !is_ready(shared, index, at_ns, &earliest_ns)) {
		index = choose(shared, &earliest_ns);
		if (index == NO_CHANNEL) {
			board->now_ns = least(earliest_ns, now_ns);
			return earliest_ns <= now_ns;
		}
	}
	channel = &shared->channels[index];
	if (until_ns > board->slice_end_ns && !is_alone(board))
		until_ns = board->slice_end_ns;
	ended_ns = __atomic_load_n(&channel->ended_ns, __ATOMIC_ACQUIRE);
	if (ended_ns)
		until_ns = ended_ns < at_ns ? at_ns : least(until_ns, ended_ns);
	came_ns = run(channel, at_ns, until_ns);
	count_busy(channel->busy, at_ns, came_ns);
	count_busy(board->busy, at_ns, came_ns);
	board->now_ns = came_ns;
	return true;
}

void engine_advance(struct sim_shared *shared, uint64_t now_ns)
{
	while (shared->board.now_ns < now_ns && turn(shared, now_ns))
		;
}

/* When the item ends on the context's clock; 0: it is done. */
static uint64_t end_ns(const struct sim_channel *channel, unsigned int queue, uint64_t number)
{
	return number > channel->completed[queue] ? item_at(channel, queue, number)->end_ns : 0;
}

uint64_t engine_submit(struct sim_shared *shared, uint32_t queue, uint64_t duration_ns,
		       uint64_t earliest_ns, const uint64_t after[SIM_QUEUES])
{
	uint64_t now_ns = shared->board.now_ns, start_ns, number;
	uint32_t index = queue / SIM_QUEUES;
	struct sim_channel *channel = &shared->channels[index];

	queue %= SIM_QUEUES;
	number = channel->submitted[queue] + 1;
	if (number - channel->completed[queue] > SIM_PENDING)
		return 0;
	start_ns = most(channel->ran_ns, end_ns(channel, queue, number - 1));
	for (unsigned int other = 0; other < SIM_QUEUES; other++)
		start_ns = most(start_ns, end_ns(channel, other, after[other]));
	if (earliest_ns > now_ns)
		start_ns = most(start_ns, channel->ran_ns + (earliest_ns - now_ns));
	channel->queues[queue].items[number % SIM_PENDING] = (struct sim_item){
	    .start_ns = start_ns, .end_ns = start_ns + duration_ns, .earliest_ns = earliest_ns};
	set_pending(&shared->board, index, true);
	__atomic_store_n(&channel->submitted[queue], number, __ATOMIC_RELEASE);
	return number;
}

/*
 * How long channel `other` runs until channel `index` has had `turns` turns. The current channel
 * also has the rest of its slice. A channel whose turn comes after that of `index` has one turn
 * less.
 */
static uint64_t other_ns(const struct sim_shared *shared, uint32_t other, uint32_t index,
			 uint64_t turns)
{
	const struct sim_board *board = &shared->board;
	const struct sim_channel *channel = &shared->channels[other];
	const struct sim_item *first = first_item(channel);
	uint32_t current = board->current % SIM_CHANNELS;
	uint64_t rest_ns = 0;

	if (!first || has_ended(channel, board->now_ns) || first->earliest_ns > board->now_ns)
		return 0;
	if (other == current && board->slice_end_ns > board->now_ns)
		rest_ns = board->slice_end_ns - board->now_ns;
	if ((other - current - 1) % SIM_CHANNELS > (index - current - 1) % SIM_CHANNELS)
		turns--;
	return least(left_ns(channel), turns * board->time_slice_ns + rest_ns);
}

uint64_t engine_predict_ns(const struct sim_shared *shared, uint32_t queue, uint64_t number)
{
	const struct sim_board *board = &shared->board;
	uint32_t index = queue / SIM_QUEUES;
	const struct sim_channel *channel = &shared->channels[index];
	const struct sim_item *first = first_item(channel);
	uint64_t at_ns = board->now_ns, rest_ns = 0, turns;
	uint64_t own_ns = item_at(channel, queue % SIM_QUEUES, number)->end_ns -
			  most(channel->ran_ns, first->start_ns);

	if (board->current == index && board->slice_end_ns > at_ns)
		rest_ns = board->slice_end_ns - at_ns;
	turns = own_ns > rest_ns ? (own_ns - rest_ns - 1) / board->time_slice_ns + 1 : 0;
	at_ns = most(at_ns, first->earliest_ns) + own_ns;
	for (uint32_t other = next_pending(board, 0); turns && other != NO_CHANNEL;
	     other = next_pending(board, other + 1))
		if (other != index)
			at_ns += other_ns(shared, other, index, turns);
	return at_ns;
}
