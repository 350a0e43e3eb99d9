/*
 * See before_init.h. A fork child of an initialised process has had its cuInit: there every entry
 * returns CUDA_ERROR_NOT_INITIALIZED.
 */
#include "entry/before_init.h"
#include "base/driver.h"

#include <string.h>

static const struct {
	const char *name;
	CUresult zeros, others;
} rows[] = {
#define BEFORE_INIT(symbol, zeros, others) {#symbol, (CUresult)zeros, (CUresult)others},
#include "entry/before_init.def"
};

bool before_init(const char *name, bool zeros, CUresult *result)
{
	if (driver_is_child())
		return false;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		if (strcmp(rows[i].name, name) != 0)
			continue;
		*result = zeros ? rows[i].zeros : rows[i].others;
		return true;
	}
	return false;
}
