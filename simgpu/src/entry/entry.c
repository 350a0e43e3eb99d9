/*
 * The exported functions: every entry of cuda.def. Before cuInit it may have an answer of its own;
 * a fault of that name may apply; then the driver's own function runs.
 *
 * An ENTRY row has no list of arguments: they are a, b, c and so on, as many as it has parameters.
 */
#include "abi/cuda_entry.h"
#include "abi/cuda_export.h"
#include "base/driver.h"
#include "base/fault.h"
#include "entry/before_init.h"

#include <string.h>

/* clang-format off */
#define JOIN_(left, right) left##right
#define JOIN(left, right) JOIN_(left, right)
#define FIRST(first, ...) first
#define SECOND_(first, second, ...) second
#define SECOND(...) SECOND_(__VA_ARGS__)
#define COUNT(...) COUNT_(__VA_ARGS__, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, ~)
#define COUNT_(a, b, c, d, e, f, g, h, i, j, k, count, ...) count
#define ARGS_1 (a)
#define ARGS_2 (a, b)
#define ARGS_3 (a, b, c)
#define ARGS_4 (a, b, c, d)
#define ARGS_5 (a, b, c, d, e)
#define ARGS_6 (a, b, c, d, e, f)
#define ARGS_7 (a, b, c, d, e, f, g)
#define ARGS_8 (a, b, c, d, e, f, g, h)
/* (void) is none: PROBE_void alone is followed by the parenthesis and expands. */
#define PROBE_void() ~, NONE
#define LIST_NONE(...) ()
#define LIST_SOME(...) JOIN(ARGS_, COUNT(__VA_ARGS__))
#define ARGS(...)                                                                                  \
	JOIN(LIST_, SECOND(JOIN(PROBE_, FIRST(__VA_ARGS__, ~))(), SOME, ~))(__VA_ARGS__)
/* Whether all arguments are zero. */
#define ZEROS_1 is_zero(&a, sizeof(a))
#define ZEROS_2 ZEROS_1 && is_zero(&b, sizeof(b))
#define ZEROS_3 ZEROS_2 && is_zero(&c, sizeof(c))
#define ZEROS_4 ZEROS_3 && is_zero(&d, sizeof(d))
#define ZEROS_5 ZEROS_4 && is_zero(&e, sizeof(e))
#define ZEROS_6 ZEROS_5 && is_zero(&f, sizeof(f))
#define ZEROS_7 ZEROS_6 && is_zero(&g, sizeof(g))
#define ZEROS_8 ZEROS_7 && is_zero(&h, sizeof(h))
#define ZEROS_9 ZEROS_8 && is_zero(&i, sizeof(i))
#define ZEROS_10 ZEROS_9 && is_zero(&j, sizeof(j))
#define ZEROS_11 ZEROS_10 && is_zero(&k, sizeof(k))
#define ZEROS_NONE(...) true
#define ZEROS_SOME(...) JOIN(ZEROS_, COUNT(__VA_ARGS__))
#define ZEROS(...)                                                                                 \
	JOIN(ZEROS_, SECOND(JOIN(PROBE_, FIRST(__VA_ARGS__, ~))(), SOME, ~))(__VA_ARGS__)
/* clang-format on */

static bool is_zero(const void *argument, size_t bytes)
{
	static const char zeros[sizeof(CUipcMemHandle)];

	return memcmp(argument, zeros, bytes) == 0;
}

#define EXPORT(symbol, name, params, args)                                                         \
	CUresult exported_##symbol params                                                          \
	{                                                                                          \
		CUresult result;                                                                   \
		if (!driver_is_up() && before_init(name, ZEROS params, &result))                   \
			return result;                                                             \
		return fault_strikes(name, &result) ? result : symbol args;                        \
	}

#define ENTRY(symbol, base, since, params)		EXPORT(symbol, #symbol, params, ARGS params)
#define OLDER(symbol, base, since, params, args, newer) EXPORT(symbol, #symbol, params, args)
#define PER_THREAD(symbol, base, since, params, args, suffix, twin_since)                          \
	EXPORT(symbol, #symbol, params, args)                                                      \
	EXPORT(symbol##suffix, #symbol #suffix, params, args)
#include "abi/cuda.def"
