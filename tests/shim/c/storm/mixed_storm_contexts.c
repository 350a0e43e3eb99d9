/* Contexts and code that are created and destroyed, and queries that programs make (see
 * mixed_storm.c). */
#include "mixed_storm.h"

#include "abi/nvml_abi.h"

enum { PRINTF_FIFO = 1, FIFO_BYTES = 2 << 20, MULTIPROCESSORS = 1, DEFAULT_STREAM = 1, ROWS = 64 };

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
						     nvmlProcessInfo_t *rows);

static const char CODE[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
			   ".visible .entry brief() { ret; }\n";

void look(void)
{
	size_t free_bytes, total_bytes, gpu_bytes;
	nvmlProcessInfo_t rows[ROWS];
	unsigned int count = ROWS;
	nvmlDevice_t device;
	nvmlMemory_t memory;
	void *found;

	OK(cuGetProcAddress_v2("cuMemAlloc", &found, 13000, 0, NULL));
	MUST(found == (void *)cuMemAlloc_v2);
	OK(cuGetProcAddress_v2("cuCtxDestroy", &found, 13000, 0, NULL));
	MUST(found == (void *)cuCtxDestroy_v2);
	OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
	OK(cuDeviceTotalMem_v2(&gpu_bytes, 0));
	MUST(free_bytes <= total_bytes && total_bytes == gpu_bytes);
	MUST(nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS);
	MUST(nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS);
	MUST(memory.total == gpu_bytes && memory.used <= memory.total);
	MUST(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, rows) == NVML_SUCCESS);
}

/* Load and run code. The library refuses no code, even at the limit. */
static void run_code(CUstream on)
{
	CUfunction function;
	CUmodule module;

	if (!FITS(cuModuleLoadData(&module, CODE)))
		return;
	if (FITS(cuModuleGetFunction(&function, module, "brief")) &&
	    FITS(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, on, NULL, NULL)))
		OK(cuStreamSynchronize(on));
	OK(cuModuleUnload(module));
}

/* Allocate in a green context, and free after the green context has ended. */
static void live_in_green(void)
{
	struct thing left[4] = {0};
	CUdevResourceDesc described;
	CUdevResource resource;
	CUcontext context;
	CUgreenCtx green;

	OK(cuDeviceGetDevResource(0, &resource, MULTIPROCESSORS));
	OK(cuDevResourceGenerateDesc(&described, &resource, 1));
	if (!FITS(cuGreenCtxCreate(&green, described, 0, DEFAULT_STREAM)))
		return;
	OK(cuCtxFromGreenCtx(&context, green));
	OK(cuCtxPushCurrent_v2(context));
	for (int i = 0; i < 4; i++)
		if (!make_linear(&left[i]))
			left[i].address = 0;
	OK(cuCtxPopCurrent_v2(&context));
	OK(cuGreenCtxDestroy(green));
	for (int i = 0; i < 4; i++)
		if (left[i].address)
			end_linear(&left[i]);
}

void live_briefly(void)
{
	struct thing left;
	CUcontext context;

	run_code(stream);
	if (!FITS(cuCtxCreate_v4(&context, NULL, 0, 0)))
		return;
	run_code(NULL);
	(void)FITS(cuCtxSetLimit(PRINTF_FIFO, FIFO_BYTES));
	for (int i = 0; i < 8; i++) {
		(void)make_linear(&left);
		(void)make_array(&left);
	}
	OK(cuCtxDestroy_v2(context));
	live_in_green();
}
