int cuInit(unsigned int flags);
int cuDeviceGet(int *device, int ordinal);
int cuDeviceGetUuid(unsigned char uuid[16], int device);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
