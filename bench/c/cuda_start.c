/*
 * A CUDA program that allocates memory and exits. With an argument, it reports the allocation on
 * descriptor 3, and exits when the other end of descriptor 4 is closed.
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
	if (argc > 1 && (write(3, &byte, 1) != 1 || read(4, &byte, 1) != 0))
		return 1;
	return 0;
}
