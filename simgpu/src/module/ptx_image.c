/* The result of parsing PTX text and machine code, and searches in it; see ptx.h. */
#define _GNU_SOURCE
#include "module/ptx.h"

#include <stdlib.h>
#include <string.h>

void *ptx_grow(void *rows, unsigned int count, size_t bytes)
{
	/* At powers of two, so that a long list is not copied for each row. */
	if (count & (count - 1) || count == 1)
		return rows;
	return realloc(rows, bytes * (count ? count * 2 : 2));
}

enum ptx_result ptx_variable_add(struct ptx *ptx, const char *name, size_t name_bytes,
				 struct ptx_variable row)
{
	struct ptx_variable *rows = ptx_grow(ptx->variables, ptx->variable_count, sizeof(*rows));

	if (!rows)
		return PTX_NO_MEMORY;
	ptx->variables = rows;
	row.name = strndup(name, name_bytes);
	if (!row.name)
		return PTX_NO_MEMORY;
	rows[ptx->variable_count++] = row;
	if (row.offset + row.bytes > ptx->variables_bytes)
		ptx->variables_bytes = row.offset + row.bytes;
	return PTX_OK;
}

static int by_name(const void *left, const void *right)
{
	return strcmp((*(const struct ptx_entry *const *)left)->name,
		      (*(const struct ptx_entry *const *)right)->name);
}

enum ptx_result ptx_finish(struct ptx *ptx)
{
	ptx->by_name = malloc((ptx->entry_count + 1) * sizeof(*ptx->by_name));
	if (!ptx->by_name)
		return PTX_NO_MEMORY;
	for (unsigned int i = 0; i < ptx->entry_count; i++)
		ptx->by_name[i] = &ptx->entries[i];
	qsort(ptx->by_name, ptx->entry_count, sizeof(*ptx->by_name), by_name);
	return PTX_OK;
}

int ptx_entry_find(const struct ptx *ptx, const char *name)
{
	const struct ptx_entry wanted = {.name = (char *)name}, *key = &wanted;
	const struct ptx_entry **found =
	    bsearch(&key, ptx->by_name, ptx->entry_count, sizeof(*ptx->by_name), by_name);

	return found ? (int)(*found - ptx->entries) : -1;
}

const struct ptx_variable *ptx_variable_find(const struct ptx *ptx, const char *name)
{
	for (unsigned int i = 0; i < ptx->variable_count; i++)
		if (strcmp(ptx->variables[i].name, name) == 0)
			return &ptx->variables[i];
	return NULL;
}

void ptx_release(struct ptx *ptx)
{
	if (--ptx->references)
		return;
	for (unsigned int i = 0; i < ptx->entry_count; i++) {
		free(ptx->entries[i].name);
		free(ptx->entries[i].parameters);
	}
	for (unsigned int i = 0; i < ptx->variable_count; i++)
		free(ptx->variables[i].name);
	free(ptx->entries);
	free(ptx->by_name);
	free(ptx->variables);
	free(ptx->initial);
	free(ptx);
}
