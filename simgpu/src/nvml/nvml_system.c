/*
 * Entries that need no device: the texts of error codes, versions, and the names of processes.
 */
#define _GNU_SOURCE
#include "nvml/nvml_gpus.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

const char *nvmlErrorString(nvmlReturn_t result);
__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result)
{
	static const char *const texts[] = {
	    "Success",
	    "Uninitialized",
	    "Invalid Argument",
	    "Not Supported",
	    "Insufficient Permissions",
	    "Already Initialized",
	    "Not Found",
	    "Insufficient Size",
	    "Insufficient External Power",
	    "Driver Not Loaded",
	    "Timeout",
	    "Interrupt Request Issue",
	    "NVML Shared Library Not Found",
	    "Function Not Found",
	    "Corrupted infoROM",
	    "GPU is lost",
	    "GPU requires reset",
	    "GPU access blocked by the operating system",
	    "Driver/library version mismatch",
	    "In use by another client",
	    "Insufficient Memory",
	    "No data",
	    "vGPU ECC not supported",
	    "Insufficient Resources",
	    "Invalid Frequency",
	    "Argument version mismatch",
	    "Requested functionality has been deprecated",
	    "System is not in ready state",
	    "No supported GPUs were found",
	    "Resource not in correct state to perform requested operation"};

	if ((unsigned int)result < sizeof(texts) / sizeof(texts[0]))
		return texts[result];
	return "Unknown Error";
}

NVML_API(nvmlSystemGetDriverVersion, char *version, unsigned int length)
{
	char text[NVML_VERSION_BUFFER_SIZE] = "";

	NVML_TRY(nvml_enter_any());
	if (nvml_gpu_count())
		snprintf(text, sizeof(text), "%s", sim_link_gpu(nvml_gpu(0)->link)->driver_version);
	nvml_leave();
	return nvml_copy_text(text, version, length);
}

/* The library's own version, available without a driver. */
NVML_API(nvmlSystemGetNVMLVersion, char *version, unsigned int length)
{
	return nvml_copy_text(SIMGPU_NVML_VERSION, version, length);
}

NVML_API(nvmlSystemGetCudaDriverVersion_v2, int *version)
{
	NVML_TRY(nvml_enter_any());
	if (version)
		*version =
		    nvml_gpu_count() ? (int)sim_link_gpu(nvml_gpu(0)->link)->cuda_version : 0;
	nvml_leave();
	return version ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API(nvmlSystemGetCudaDriverVersion, int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* Export tables are private to NVIDIA's own programs. Here every id is unknown. */
NVML_API(nvmlInternalGetExportTable, const void **table, const void *id)
{
	(void)table, (void)id;
	return NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API(nvmlSystemGetProcessName, unsigned int pid, char *name, unsigned int length)
{
	char path[32];
	ssize_t got;
	int fd;

	NVML_TRY(nvml_enter_any());
	nvml_leave();
	if (!name || !length)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NVML_ERROR_NOT_FOUND;
	got = read(fd, name, length - 1);
	close(fd);
	if (got < 0)
		return NVML_ERROR_NOT_FOUND;
	/* NULs separate the arguments, so the first argument ends the text. */
	name[got] = '\0';
	return NVML_SUCCESS;
}

/* Defines functions that are exported but not supported. They read no arguments, so under Linux's C
 * calling convention a caller may use the real prototypes. */
#define UNSUPPORTED(name)                                                                          \
	NVML_API(name, void)                                                                       \
	{                                                                                          \
		NVML_TRY(nvml_enter_any());                                                        \
		nvml_leave();                                                                      \
		return NVML_ERROR_NOT_SUPPORTED;                                                   \
	}

#include "nvml/nvml_unsupported.def"
