/*
 * The exported functions: every entry of cuda.def. A fault of that name may apply; then the
 * driver's own function runs.
 *
 * An ENTRY row has no list of arguments: they are a, b, c and so on, as many as it has parameters.
 */
#include "abi/cuda_entry.h"
#include "abi/cuda_export.h"
#include "base/driver.h"
#include "base/fault.h"

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
/* clang-format on */

#define EXPORT(symbol, name, params, args)                                                         \
	CUresult exported_##symbol params                                                          \
	{                                                                                          \
		CUresult result;                                                                   \
		return fault_strikes(name, &result) ? result : symbol args;                        \
	}

#define ENTRY(symbol, base, since, params)		EXPORT(symbol, #symbol, params, ARGS params)
#define OLDER(symbol, base, since, params, args, newer) EXPORT(symbol, #symbol, params, args)
#define PER_THREAD(symbol, base, since, params, args, suffix, twin_since)                          \
	EXPORT(symbol, #symbol, params, args)                                                      \
	EXPORT(symbol##suffix, #symbol #suffix, params, args)
#include "abi/cuda.def"
