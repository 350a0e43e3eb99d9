/*
 * NVML from many threads and from fork children, for the sanitizers: every answer must be right
 * while others start, stop and fork. Prints what was wrong; exit status 0 where nothing was.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nvml_abi.h"

#define THREADS 4
#define ROUNDS	50

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
						     nvmlProcessInfo_t *rows);

static int ask(void)
{
	nvmlProcessInfo_t rows[16];
	unsigned int count = 16;
	nvmlDevice_t device;
	nvmlMemory_t memory;
	char uuid[NVML_DEVICE_UUID_BUFFER_SIZE];

	if (nvmlDeviceGetHandleByIndex_v2(1, &device) != NVML_SUCCESS ||
	    nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS ||
	    nvmlDeviceGetUUID(device, uuid, sizeof(uuid)) != NVML_SUCCESS ||
	    nvmlDeviceGetComputeRunningProcesses_v3(device, &count, rows) != NVML_SUCCESS)
		return 1;
	return memory.total != 40ULL << 30 || strlen(uuid) != 40 || count != 0;
}

static void *work(void *unused)
{
	(void)unused;
	for (int i = 0; i < ROUNDS; i++) {
		if (nvmlInit_v2() != NVML_SUCCESS || ask() || nvmlShutdown() != NVML_SUCCESS)
			return "a thread got a wrong answer";
	}
	return NULL;
}

static const char *fork_and_ask(void)
{
	for (int i = 0; i < 10; i++) {
		pid_t child = fork();
		int status;

		if (child == 0)
			_exit(ask());
		if (child < 0 || ask() || waitpid(child, &status, 0) != child || status != 0)
			return "a fork child or its parent got a wrong answer";
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	const char *wrong;

	if (nvmlInit_v2() != NVML_SUCCESS) {
		puts("no driver");
		return 1;
	}
	wrong = fork_and_ask();
	for (int i = 0; i < THREADS; i++) {
		if (pthread_create(&threads[i], NULL, work, NULL) != 0)
			return 1;
	}
	for (int i = 0; i < THREADS; i++) {
		void *result;

		pthread_join(threads[i], &result);
		wrong = result ? result : wrong;
	}
	if (nvmlShutdown() != NVML_SUCCESS)
		wrong = "the last shutdown failed";
	if (wrong)
		puts(wrong);
	return wrong != NULL;
}
