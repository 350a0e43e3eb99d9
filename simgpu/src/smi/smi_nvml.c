/* NVML's functions. nvidia_smi.c fills this struct: see smi.h. */
#include "smi/smi.h"

struct smi_nvml nvml;
