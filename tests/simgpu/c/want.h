/* What the C checks share: a statement that must hold, and the line where it did not. */
#ifndef SIMGPU_WANT_H
#define SIMGPU_WANT_H

#include <stdio.h>
#include <stdlib.h>

#define WANT(expression, wanted)                                                                   \
	do {                                                                                       \
		long got_ = (long)(expression);                                                    \
		long wanted_ = (long)(wanted);                                                     \
		if (got_ != wanted_) {                                                             \
			fprintf(stderr, "line %d: %s is %ld, not %ld\n", __LINE__, #expression,    \
				got_, wanted_);                                                    \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)
#define OK(expression) WANT(expression, CUDA_SUCCESS)

#endif
