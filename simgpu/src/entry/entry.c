/*
 * The exported functions. A function of cuda.def first applies faults for its name. Then it calls
 * the driver's own function or that of a newer ABI. The name's suffix selects the kind of stream 0.
 * A function of cuda_unsupported.def returns NOT_SUPPORTED, or before cuInit NOT_INITIALIZED. All
 * of these have one signature, because they read no argument and callers remove the arguments.
 *
 * An ENTRY row has no list of arguments. Its parameters must be named a, b, c and so on.
 */
#include "abi/cuda_entry.h"
#include "abi/cuda_export.h"
#include "base/driver.h"

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
/* ARGS(void) is (), because PROBE_void() expands. PROBE_ before another type does not. */
#define PROBE_void() ~, NONE
#define LIST_NONE(...) ()
#define LIST_SOME(...) JOIN(ARGS_, COUNT(__VA_ARGS__))
#define ARGS(...)                                                                                  \
	JOIN(LIST_, SECOND(JOIN(PROBE_, FIRST(__VA_ARGS__, ~))(), SOME, ~))(__VA_ARGS__)
/* clang-format on */

#define EXPORT(symbol, params, call, own_stream)                                                   \
	CUresult exported_##symbol params                                                          \
	{                                                                                          \
		bool before = stream_per_thread(own_stream);                                       \
		CUresult result;                                                                   \
                                                                                                   \
		if (!fault_strikes(#symbol, &result))                                              \
			result = call;                                                             \
		stream_per_thread(before);                                                         \
		return result;                                                                     \
	}

#define ENTRY(symbol, base, since, params)		EXPORT(symbol, params, symbol ARGS params, false)
#define OLDER(symbol, base, since, params, args, newer) EXPORT(symbol, params, newer args, false)
#define PER_THREAD(symbol, base, since, params, args, suffix, twin_since)                          \
	EXPORT(symbol, params, symbol args, false)                                                 \
	EXPORT(symbol##suffix, params, symbol args, true)
#include "abi/cuda.def"

#define NAME(symbol, base, since)                                                                  \
	CUresult symbol(void)                                                                      \
	{                                                                                          \
		return driver_is_up() ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NOT_INITIALIZED;     \
	}
#define PER_THREAD_NAME(symbol, base, since, suffix, twin_since)                                   \
	NAME(symbol, base, since) NAME(symbol##suffix, base, twin_since)
#include "abi/cuda_unsupported.def"
