/* PTX text: its entries and `// simgpu:` comments; see code.h. */
#include "module/code.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct reader {
	const char *at; /* after the current word */
	const char *word;
	size_t length;
	struct code_entry stated; /* by comments, for the next entry */
	struct code *code;
};

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || (c && strchr("_$.%", c));
}

static void read_comment(struct reader *reader, const char *at)
{
	const struct {
		const char *key;
		uint64_t *value;
	} settings[] = {{" simgpu: duration_ns=", &reader->stated.duration_ns},
			{" simgpu: duration_argument=", &reader->stated.duration_argument},
			{" simgpu: local_bytes=", &reader->stated.local_bytes},
			{" simgpu: module_bytes=", &reader->code->bytes}};

	for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++) {
		size_t length = strlen(settings[i].key);

		if (strncmp(at, settings[i].key, length) == 0)
			*settings[i].value = strtoull(at + length, NULL, 10);
	}
}

/* The next word, whatever else lies between; false at the end of the text. */
static bool next(struct reader *reader)
{
	const char *at = reader->at, *end;

	while (*at && !is_word(*at)) {
		if (at[0] == '/' && at[1] == '/') {
			read_comment(reader, at + 2);
			at += strcspn(at, "\n");
		} else if (at[0] == '/' && at[1] == '*') {
			end = strstr(at + 2, "*/");
			at = end ? end + 2 : at + strlen(at);
		} else {
			at++;
		}
	}
	reader->word = at;
	while (is_word(*at))
		at++;
	reader->length = (size_t)(at - reader->word);
	reader->at = at;
	return reader->length;
}

static bool is(const struct reader *reader, const char *text)
{
	return reader->length == strlen(text) && memcmp(reader->word, text, reader->length) == 0;
}

static bool read_entry(struct reader *reader)
{
	struct code_entry stated = reader->stated;

	reader->stated =
	    (struct code_entry){.duration_ns = CODE_UNSTATED, .duration_argument = CODE_UNSTATED};
	return !next(reader) || code_entry_add(reader->code, stated, reader->word, reader->length);
}

enum code_result text_read(const char *text, struct code *code)
{
	struct reader reader = {
	    .at = text,
	    .stated = {.duration_ns = CODE_UNSTATED, .duration_argument = CODE_UNSTATED},
	    .code = code};
	bool kept = true;

	code->bytes = CODE_UNSTATED;
	if (!next(&reader) || !is(&reader, ".version"))
		return CODE_INVALID;
	while (kept && next(&reader))
		if (is(&reader, ".entry"))
			kept = read_entry(&reader);
	return kept ? CODE_OK : CODE_NO_MEMORY;
}
