/* The functions of NVML. nvidia_smi.c fills this: see smi.h. */
#include "smi/smi.h"

struct smi_nvml nvml;
