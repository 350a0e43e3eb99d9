/*
 * See homes.h. Two tables of handles under one lock. A function's row names its module and the
 * serial number of that module's row, so it ends with the module; a kernel's function names the
 * number of libraries unloaded so far. A context's rows are free when it has ended; where there is
 * no free one for a handle, one in turn goes.
 */
#include "homes.h"

#include <stdbool.h>
#include <stddef.h>

#include "hooks.h"
#include "lives.h"
#include "load.h"
#include "lock.h"
#include "seen.h"
#include "wiped.h"

enum { MODULE_BITS = 12, FUNCTION_BITS = 13, WAYS = 16, CAPTURE_MODE_RELAXED = 2 };

struct row {
	const void *handle; /* NULL: free */
	const void *module; /* of a function; NULL: of a kernel's */
	struct vgpu_home home;
};

struct table {
	struct vgpu_wiped wiped;
	struct vgpu_lock lock;
	uint32_t serials, libraries_ended, turn;
	struct row modules[1 << MODULE_BITS];
	struct row functions[1 << FUNCTION_BITS];
};

static struct vgpu_wiped *the_table;

/* NULL: not to be had. */
static struct table *lock_table(void)
{
	struct table *table = vgpu_wiped_pages(&the_table, sizeof(struct table));

	return table && vgpu_lock(&table->lock) ? table : NULL;
}

static struct row *way(struct row *rows, int bits, const void *handle, uint32_t number)
{
	uint64_t spread = (uint64_t)(uintptr_t)handle * UINT64_C(0x9e3779b97f4a7c15);

	return &rows[((spread >> (64 - bits)) + number) % (UINT32_C(1) << bits)];
}

static struct row *find(struct row *rows, int bits, const void *handle)
{
	for (uint32_t i = 0; i < WAYS; i++)
		if (way(rows, bits, handle, i)->handle == handle)
			return way(rows, bits, handle, i);
	return NULL;
}

static bool is_free(const struct row *row)
{
	return !row->handle || !vgpu_place_lives(row->home.life);
}

static struct row *room_for(struct table *table, struct row *rows, int bits, const void *handle)
{
	struct row *row = find(rows, bits, handle);

	for (uint32_t i = 0; i < WAYS && !row; i++)
		if (is_free(way(rows, bits, handle, i)))
			row = way(rows, bits, handle, i);
	return row ? row : way(rows, bits, handle, table->turn++ % WAYS);
}

static uint32_t current_life(void)
{
	struct vgpu_place place;

	return vgpu_place_current(&place) == CUDA_SUCCESS ? place.context : 0;
}

void vgpu_home_begin(CUmodule module, uint32_t life)
{
	struct table *table = module ? lock_table() : NULL;

	if (!table)
		return;
	*room_for(table, table->modules, MODULE_BITS, module) =
	    (struct row){.handle = module, .home = {life, ++table->serials}};
	vgpu_unlock(&table->lock);
}

void vgpu_home_begin_here(CUmodule module)
{
	vgpu_home_begin(module, current_life());
}

void vgpu_home_of_new(CUfunction function, CUmodule module)
{
	struct table *table = function ? lock_table() : NULL;
	const struct row *home;

	if (!table)
		return;
	home = find(table->modules, MODULE_BITS, module);
	if (home)
		*room_for(table, table->functions, FUNCTION_BITS, function) =
		    (struct row){function, module, home->home};
	vgpu_unlock(&table->lock);
}

void vgpu_home_of_kernels(CUfunction function)
{
	uint32_t life = current_life();
	struct table *table = function ? lock_table() : NULL;

	if (!table)
		return;
	*room_for(table, table->functions, FUNCTION_BITS, function) =
	    (struct row){.handle = function, .home = {life, table->libraries_ended}};
	vgpu_unlock(&table->lock);
}

struct vgpu_home vgpu_home_end(CUmodule module)
{
	struct vgpu_home home = {0};
	struct table *table = module ? lock_table() : NULL;
	struct row *row;

	if (!table)
		return home;
	row = find(table->modules, MODULE_BITS, module);
	if (row) {
		home = row->home;
		*row = (struct row){0};
	}
	vgpu_unlock(&table->lock);
	return home;
}

void vgpu_home_stays(CUmodule module, struct vgpu_home home)
{
	struct table *table = home.life ? lock_table() : NULL;

	if (!table)
		return;
	*room_for(table, table->modules, MODULE_BITS, module) =
	    (struct row){.handle = module, .home = home};
	vgpu_unlock(&table->lock);
}

void vgpu_homes_end_of_kernels(void)
{
	struct table *table = lock_table();

	if (!table)
		return;
	table->libraries_ended++;
	vgpu_unlock(&table->lock);
}

static uint32_t life_of_module(CUmodule module)
{
	struct table *table = module ? lock_table() : NULL;
	const struct row *row;
	uint32_t life;

	if (!table)
		return 0;
	row = find(table->modules, MODULE_BITS, module);
	life = row ? row->home.life : 0;
	vgpu_unlock(&table->lock);
	return life;
}

/* The caller holds the lock. */
static bool stands(struct table *table, const struct row *row)
{
	const struct row *module;

	if (!row->module)
		return row->home.serial == table->libraries_ended;
	module = find(table->modules, MODULE_BITS, row->module);
	return module && module->home.serial == row->home.serial;
}

static uint32_t life_of_function(CUfunction function)
{
	struct table *table = lock_table();
	const struct row *row;
	uint32_t life;

	if (!table)
		return 0;
	row = find(table->functions, FUNCTION_BITS, function);
	life = row && stands(table, row) ? row->home.life : 0;
	vgpu_unlock(&table->lock);
	return life;
}

/* Of one that came by another way. The question may load it, and must not end a capture. */
static uint32_t ask(CUfunction function)
{
	int mode = CAPTURE_MODE_RELAXED;
	bool exchanged = real_cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
	CUmodule module = NULL;
	CUresult result;

	VGPU_CALL_LOADING(result, real_cuFuncGetModule(&module, function));
	if (exchanged)
		(void)real_cuThreadExchangeStreamCaptureMode(&mode);
	if (result != CUDA_SUCCESS)
		return 0;
	vgpu_home_of_new(function, module);
	return life_of_module(module);
}

/* The current context, where that is it: also by another handle of the same. */
static CUcontext context_of(uint32_t life)
{
	CUcontext current = NULL;
	struct vgpu_place place;

	if (!life)
		return NULL;
	if (real_cuCtxGetCurrent(&current) == CUDA_SUCCESS && current &&
	    vgpu_lives_known(current, &place) && place.context == life)
		return current;
	return vgpu_place_context_of(life);
}

CUcontext vgpu_home_of_module(CUmodule module)
{
	return vgpu_several_contexts() ? context_of(life_of_module(module)) : NULL;
}

CUcontext vgpu_home_of_function(CUfunction function)
{
	uint32_t life;

	if (!function || !vgpu_several_contexts())
		return NULL;
	life = life_of_function(function);
	if (!life && !vgpu_is_kernel(function))
		life = ask(function);
	return context_of(life);
}
