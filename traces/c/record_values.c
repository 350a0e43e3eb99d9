/*
 * Writes the arguments of a call into a line of a trace, according to the tokens of signatures.py.
 */
#include "record.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ELEMENTS = 64 };
enum { CONFIG_BYTES = 56, CONFIG_ATTRIBUTES = 40, CONFIG_COUNT = 48, ATTRIBUTE_BYTES = 72 };

void add(struct text *text, const char *format, ...)
{
	va_list arguments;
	int added;

	va_start(arguments, format);
	added = vsnprintf(text->bytes + text->length, LINE_BYTES - text->length, format, arguments);
	va_end(arguments);
	text->length += (size_t)added;
	if (text->length >= LINE_BYTES)
		text->length = LINE_BYTES - 1;
}

static const unsigned char *pointer(uint64_t word)
{
	return (const unsigned char *)(uintptr_t)word;
}

static void add_bytes(struct text *text, const unsigned char *bytes, size_t count)
{
	add(text, "h:");
	for (size_t i = 0; i < count; i++)
		add(text, "%02x", bytes[i]);
}

/* Adds a value in memory, according to a token such as n4. */
static void add_value(struct text *text, const char *token, const unsigned char *bytes)
{
	size_t size = strtoul(token + 1, NULL, 10);
	uint64_t value = 0;

	if (*token == 'h') {
		add_bytes(text, bytes, size);
		return;
	}
	memcpy(&value, bytes, size);
	if (*token == 'n')
		add(text, "%d", (int)value);
	else
		add(text, *token == 'x' ? "0x%llx" : "%llu", (unsigned long long)value);
}

/* Returns the token of the attribute's value. token: `a:b:MASK`. The values of attributes whose bit
 * is in MASK have four bytes, others eight. */
static const char *attribute_token(const char *token, uint64_t attribute)
{
	uint64_t mask = strtoull(strrchr(token, ':') + 1, NULL, 16);

	return attribute < 64 && mask >> attribute & 1 ? "n4" : "x8";
}

static void add_array(struct text *text, const char *token, uint64_t word, const uint64_t *words)
{
	uint32_t count = (uint32_t)words[strchr(token, ':')[1] - 'a'];
	size_t size = strtoul(token + 2, NULL, 10);

	add(text, "[");
	for (uint32_t i = 0; i < count && i < MOST_ELEMENTS; i++) {
		add(text, i ? "," : "");
		add_value(text, token + 1, pointer(word) + i * size);
	}
	add(text, "]");
}

static void add_config(struct text *text, char letter, const unsigned char *config)
{
	const unsigned char *attributes;
	uint32_t count;

	memcpy(&attributes, config + CONFIG_ATTRIBUTES, sizeof(attributes));
	memcpy(&count, config + CONFIG_COUNT, sizeof(count));
	add_bytes(text, config, CONFIG_BYTES);
	if (!attributes || !count)
		return;
	add(text, " %c.attrs=[", letter);
	for (uint32_t i = 0; i < count && i < MOST_ELEMENTS; i++) {
		add(text, i ? "," : "");
		add_bytes(text, attributes + i * ATTRIBUTE_BYTES, ATTRIBUTE_BYTES);
	}
	add(text, "]");
}

/* Adds an argument before the call. */
static void add_before(struct text *text, const char *token, unsigned index, const uint64_t *words)
{
	uint64_t word = words[index];
	const char *value = token + (*token == '<' || *token == '=');

	add(text, " %c=", (int)('a' + index));
	if (strchr("nux", *token)) {
		add_value(text, token, (const unsigned char *)&word);
	} else if (!word) {
		add(text, "0");
	} else if (*token == '>') {
		add(text, "&");
	} else if (strchr("s?", *token)) {
		add(text, "@");
	} else if (*token == '[') {
		add_array(text, token, word, words);
	} else if (*token == 'L') {
		add_config(text, (char)('a' + index), pointer(word));
	} else {
		if (*token == 'a')
			value = attribute_token(token, words[token[2] - 'a']);
		add_value(text, value, pointer(word));
	}
}

/* Adds the attributes that cuPointerGetAttributes(count, attributes, data, pointer) wrote. */
static void add_attributes(struct text *text, const char *token, const uint64_t *words)
{
	const int32_t *attributes = (const void *)pointer(words[1]);
	const unsigned char *const *data = (const void *)pointer(words[2]);

	add(text, " c=[");
	for (uint32_t i = 0; i < (uint32_t)words[0] && i < MOST_ELEMENTS; i++) {
		add(text, i ? "," : "");
		add_value(text, attribute_token(token, (uint64_t)attributes[i]), data[i]);
	}
	add(text, "]");
}

/* Adds the value that the driver wrote to an argument. */
static void add_after(struct text *text, const char *token, unsigned index, const uint64_t *words)
{
	const char *value = token + 1;

	if (!words[index] || !strchr(">=", *token) || *value == '?')
		return;
	if (*value == 'A') {
		add_attributes(text, token, words);
		return;
	}
	if (*value == 'a')
		value = attribute_token(token, words[token[3] - 'a']);
	add(text, " %c=", (int)('a' + index));
	add_value(text, value, pointer(words[index]));
}

typedef void add_argument(struct text *, const char *, unsigned, const uint64_t *);

static void add_each(struct text *text, const char *tokens, const uint64_t *words,
		     add_argument *each)
{
	char token[64];
	int length;

	for (unsigned i = 0; sscanf(tokens, " %63s%n", token, &length) == 1; i++) {
		each(text, token, i, words);
		tokens += length;
	}
}

void add_arguments(struct text *text, const char *tokens, const uint64_t *words)
{
	add_each(text, tokens, words, add_before);
}

void add_written(struct text *text, const char *tokens, const uint64_t *words)
{
	add_each(text, tokens, words, add_after);
}
