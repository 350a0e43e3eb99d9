/*
 * A CUDA program that allocates memory and exits. With an argument, it reports the allocation on
 * standard output, and exits when the other end of standard input is closed.
 */
#include <stddef.h>
#include <unistd.h>

#include "abi/cuda_entry.h"

int main(int argc, char **argv)
{
	CUdeviceptr address;
	CUcontext context;
	char byte = 0;

	(void)argv;
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
	    cuMemAlloc_v2(&address, 512))
		return 1;
	if (argc > 1 && (write(1, &byte, 1) != 1 || read(0, &byte, 1) != 0))
		return 1;
	return 0;
}
