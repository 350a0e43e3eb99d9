/*
 * Functions of NVML that are exported and return NOT_SUPPORTED.
 *
 * nvml_unsupported.def is the list, only names. The arguments are never read, so the real
 * prototypes do not matter to a caller under the C calling conventions of Linux.
 */
#include "nvml/nvml_gpus.h"

#define UNSUPPORTED(name)                                                                          \
	NVML_API(name, void)                                                                       \
	{                                                                                          \
		NVML_TRY(nvml_enter_any());                                                        \
		nvml_leave();                                                                      \
		return NVML_ERROR_NOT_SUPPORTED;                                                   \
	}

#include "nvml/nvml_unsupported.def"
