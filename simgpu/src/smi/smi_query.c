/*
 * nvidia-smi's CSV queries: the requested names, a header, and a line per GPU or process.
 *
 * A value that NVML refuses is printed as NVIDIA's program prints it: [N/A] if it is not supported,
 * else the reason in brackets.
 */
#include "smi/smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FIELDS 64

/* Fields and, for the header, the names by which they were requested. */
struct query {
	const struct smi_field *fields[MAX_FIELDS];
	const char *names[MAX_FIELDS];
	int lengths[MAX_FIELDS];
	int count;
};

typedef const struct smi_field *(*find_field)(const char *name, int length);

static int parse(find_field find, const char *text, struct query *query)
{
	query->count = 0;
	for (;;) {
		int length, skip = (int)strspn(text, " ");

		text += skip;
		length = (int)strcspn(text, ", ");
		if (query->count == MAX_FIELDS) {
			printf("At most %d fields can be queried.\n", MAX_FIELDS);
			return SMI_EXIT_ARGUMENT;
		}
		query->fields[query->count] = find(text, length);
		if (!query->fields[query->count]) {
			printf("Field \"%.*s\" is not a valid field to query.\n\n", length, text);
			return SMI_EXIT_ARGUMENT;
		}
		query->names[query->count] = text;
		query->lengths[query->count++] = length;
		text += length;
		text += strspn(text, " ");
		if (*text != ',')
			break;
		text++;
	}
	return 0;
}

static void print_header(const struct query *query)
{
	for (int i = 0; i < query->count; i++) {
		printf("%s%.*s", i ? ", " : "", query->lengths[i], query->names[i]);
		if (query->fields[i]->unit)
			printf(" [%s]", query->fields[i]->unit);
	}
	putchar('\n');
}

static void print_row(const struct query *query, const struct smi_row *row, bool units)
{
	for (int i = 0; i < query->count; i++) {
		const struct smi_field *field = query->fields[i];
		char value[SMI_TEXT] = "";
		nvmlReturn_t result = field->read(row, value);

		fputs(i ? ", " : "", stdout);
		if (result == NVML_ERROR_NOT_SUPPORTED)
			fputs("[N/A]", stdout);
		else if (result != NVML_SUCCESS)
			printf("[%s]", nvml.nvmlErrorString(result));
		else if (field->unit && units)
			printf("%s %s", value, field->unit);
		else
			fputs(value, stdout);
	}
	putchar('\n');
}

int smi_query_gpu(const struct smi_selection *gpus, const char *fields,
		  const struct smi_format *format)
{
	struct query query;
	int status = parse(smi_gpu_field, fields, &query);

	if (status)
		return status;
	if (format->header)
		print_header(&query);
	for (int i = 0; i < gpus->count; i++) {
		struct smi_row row = {.device = gpus->devices[i], .index = gpus->indices[i]};

		print_row(&query, &row, format->units);
	}
	return 0;
}

int smi_query_apps(const struct smi_selection *gpus, const char *fields,
		   const struct smi_format *format)
{
	struct query query;
	int status = parse(smi_apps_field, fields, &query);

	if (status)
		return status;
	if (format->header)
		print_header(&query);
	for (int i = 0; i < gpus->count; i++) {
		unsigned int processes;
		nvmlProcessInfo_t *rows = smi_processes(gpus->devices[i], &processes);

		for (unsigned int j = 0; j < processes; j++) {
			struct smi_row row = {gpus->devices[i], gpus->indices[i], &rows[j]};

			print_row(&query, &row, format->units);
		}
		free(rows);
	}
	return 0;
}
