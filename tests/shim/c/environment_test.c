/*
 * Runs the parser of HAMi-core's variables. Each line on stdin is an environment, with its
 * variables separated by 0x1f. Each line of output has the result. If the result is OK or
 * UNMANAGED, the parsed values follow. The parser's buffer is exactly as long as its input.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "region/environment.h"

static void print(const struct vgpu_environment *environment)
{
	for (int gpu = 0; gpu < VGPU_ENVIRONMENT_MAX_GPUS; gpu++)
		printf(" %" PRIu64 " %" PRIu32, environment->limits[gpu].bytes,
		       environment->limits[gpu].core_percent);
	printf(" %d", environment->listed_count);
	for (int gpu = 0; gpu < environment->listed_count; gpu++) {
		putchar(' ');
		for (int i = 0; i < 16; i++)
			printf("%02x", environment->listed[gpu][i]);
	}
}

int main(void)
{
	static char line[1 << 16];
	static struct vgpu_environment environment;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof(line), stdin)) {
		char *variables[64] = {NULL}, *rest = NULL;
		struct vgpu_error error = {VGPU_OK, 0, ""};
		enum vgpu_result result;
		int count = 0;

		line[strcspn(line, "\n")] = '\0';
		for (char *at = strtok_r(line, "\x1f", &rest); at && count < 63;
		     at = strtok_r(NULL, "\x1f", &rest))
			variables[count++] = strdup(at);
		result = vgpu_environment_parse(variables, &environment, &error);
		printf("%d", result);
		if (result == VGPU_OK || result == VGPU_UNMANAGED)
			print(&environment);
		else
			printf(" %s", error.path);
		putchar('\n');
		while (count--)
			free(variables[count]);
	}
	return 0;
}
