/* The functions of NVML, once nvidia_smi.c has found them: see smi.h. */
#include "smi/smi.h"

struct smi_nvml nvml;
