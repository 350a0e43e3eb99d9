/*
 * User objects: data of the program that exists as long as a graph, or an executable graph of it,
 * may use it. After the last release the driver calls the program's function, in a thread of its
 * own.
 */
#include "graph/graph.h"
#include "graph/transfer.h"

#include <stdlib.h>

enum { NO_DESTRUCTOR_SYNC = 1, MOVE = 1 };

struct user_object {
	struct object object;
	struct host_call destroy;
	uint64_t references;
};

struct graph_user {
	struct graph_user *next;
	struct user_object *user;
	unsigned int count;
};

static void release(struct user_object *user, unsigned int count)
{
	static const struct mark at_once;
	uint64_t number;

	user->references -= count;
	if (user->references)
		return;
	host_call_at(&at_once, &user->destroy, &number);
	object_free(user);
}

static struct graph_user *find(struct graph_user *list, const struct user_object *user)
{
	while (list && list->user != user)
		list = list->next;
	return list;
}

/* No further reference is possible at the maximum. */
static bool can_count(uint64_t references, unsigned int more)
{
	return more && references + more <= UINT32_MAX;
}

bool graph_users_retain(struct graph_user **list, struct user_object *user, unsigned int count)
{
	struct graph_user *row = find(*list, user);

	if (!row) {
		row = calloc(1, sizeof(*row));
		if (!row)
			return false;
		*row = (struct graph_user){.next = *list, .user = user};
		*list = row;
	}
	row->count += count;
	user->references += count;
	return true;
}

bool graph_users_copy(struct graph_user **to, const struct graph_user *from)
{
	for (; from; from = from->next)
		if (!graph_users_retain(to, from->user, from->count))
			return false;
	return true;
}

void graph_users_forget(struct graph_user *list)
{
	while (list) {
		struct graph_user *gone = list;

		list = gone->next;
		release(gone->user, gone->count);
		free(gone);
	}
}

CUresult cuUserObjectCreate(CUuserObject *out, void *data, CUhostFn destroy, unsigned int count,
			    unsigned int flags)
{
	struct user_object *user;
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !destroy || !can_count(0, count) || flags != NO_DESTRUCTOR_SYNC)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	user = object_new(OBJECT_USER, sizeof(*user));
	if (!user)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	user->destroy = (struct host_call){destroy, data};
	user->references = count;
	*out = object_handle(user);
	return driver_leave(CUDA_SUCCESS);
}

static CUresult enter(CUuserObject handle, struct user_object **user)
{
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	*user = object_get(handle, OBJECT_USER);
	return *user ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned int count,
				 unsigned int flags)
{
	struct user_object *user;
	struct graph *graph;
	CUresult result = enter(handle, &user);

	if (result != CUDA_SUCCESS)
		return result;
	graph = object_get(graph_handle, OBJECT_GRAPH);
	if (!graph || !can_count(user->references, count) || flags & ~(unsigned int)MOVE ||
	    (flags & MOVE && count > user->references))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!graph_users_retain(&graph->users, user, count))
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	if (flags & MOVE)
		release(user, count);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle, unsigned int count)
{
	struct user_object *user;
	struct graph_user *row;
	struct graph *graph;
	CUresult result = enter(handle, &user);

	if (result != CUDA_SUCCESS)
		return result;
	graph = object_get(graph_handle, OBJECT_GRAPH);
	row = graph ? find(graph->users, user) : NULL;
	if (!row || !count || count > row->count)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	row->count -= count;
	if (!row->count) {
		struct graph_user **link = &graph->users;

		while (*link != row)
			link = &(*link)->next;
		*link = row->next;
		free(row);
	}
	release(user, count);
	return driver_leave(CUDA_SUCCESS);
}
