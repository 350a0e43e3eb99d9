/* A scanner over words and punctuation; see ptx.h. */
#define _GNU_SOURCE
#include "module/ptx.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "client/wire.h"

#define VARIABLE_MAX_BYTES (1ull << 40)

struct scanner {
	const char *at;	   /* after the current token */
	const char *token; /* NULL at the end of the text */
	size_t length;
	uint64_t duration_ns; /* of the last comment that names one, */
	uint64_t duration_argument;
	uint64_t local_bytes;
	uint64_t module_bytes;
	bool broken; /* a comment or string that does not end */
};

static bool is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_' || c == '$' || c == '.' || c == '%';
}

static uint64_t decimal(const char **text)
{
	uint64_t value = 0;

	for (; **text >= '0' && **text <= '9'; ++*text)
		if (value < UINT64_MAX / 20)
			value = value * 10 + (uint64_t)(**text - '0');
	return value;
}

static const char *line_comment(struct scanner *scanner, const char *at)
{
	const struct {
		const char *key;
		uint64_t *value;
	} settings[] = {{" simgpu: duration_ns=", &scanner->duration_ns},
			{" simgpu: duration_argument=", &scanner->duration_argument},
			{" simgpu: local_bytes=", &scanner->local_bytes},
			{" simgpu: module_bytes=", &scanner->module_bytes}};

	for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++) {
		size_t length = strlen(settings[i].key);
		const char *number = at + length;
		if (strncmp(at, settings[i].key, length) == 0 && *number >= '0' && *number <= '9')
			*settings[i].value = decimal(&number);
	}
	return at + strcspn(at, "\n");
}

static const char *skip_space(struct scanner *scanner)
{
	const char *at = scanner->at;

	while (*at) {
		if (strchr(" \t\r\n\f\v", *at)) {
			at++;
		} else if (at[0] == '/' && at[1] == '/') {
			at = line_comment(scanner, at + 2);
		} else if (at[0] == '/' && at[1] == '*') {
			at = strstr(at + 2, "*/");
			if (!at) {
				scanner->broken = true;
				return scanner->at + strlen(scanner->at);
			}
			at += 2;
		} else {
			break;
		}
	}
	return at;
}

static bool next(struct scanner *scanner)
{
	const char *at = skip_space(scanner);

	scanner->token = *at ? at : NULL;
	scanner->length = 0;
	if (*at == '"') {
		at = strchr(at + 1, '"');
		if (!at) {
			scanner->broken = true;
			scanner->token = NULL;
			return false;
		}
		at++;
	} else if (is_word(*at)) {
		while (is_word(*at))
			at++;
	} else if (*at) {
		at++;
	}
	scanner->length = scanner->token ? (size_t)(at - scanner->token) : 0;
	scanner->at = at;
	return scanner->token != NULL;
}

static bool is(const struct scanner *scanner, const char *text)
{
	return scanner->token && scanner->length == strlen(text) &&
	       memcmp(scanner->token, text, scanner->length) == 0;
}

/* After the bracket that closes the one just read. */
static bool skip_brackets(struct scanner *scanner, const char *open, const char *close)
{
	for (unsigned int depth = 1; depth;) {
		if (!next(scanner))
			return false;
		depth += is(scanner, open);
		depth -= is(scanner, close);
	}
	return true;
}

/* Bytes of a fundamental type as .u32, or 0. */
static size_t type_bytes(const struct scanner *scanner)
{
	const char *digits;
	uint64_t bits;

	if (scanner->length < 3 || scanner->token[0] != '.' || !strchr("usbf", scanner->token[1]))
		return 0;
	digits = scanner->token + 2;
	bits = decimal(&digits);
	if (digits != scanner->token + scanner->length)
		return 0;
	return bits == 8 || bits == 16 || bits == 32 || bits == 64 || bits == 128 ? bits / 8 : 0;
}

/* One `.param .u64 name` or `.param .align 8 .b8 name[24]`; the current token is `.param`. */
static enum ptx_result read_parameter(struct scanner *scanner, struct ptx_entry *entry)
{
	size_t bytes = 0, align = 0, count = 1, end = 0;
	struct ptx_parameter *rows;

	while (next(scanner) && !is(scanner, ",") && !is(scanner, ")")) {
		const char *number = scanner->token;

		if (is(scanner, ".ptr")) {
			/* Its target may have an alignment of its own. */
			while (next(scanner) && !is(scanner, ",") && !is(scanner, ")"))
				;
			break;
		}
		if (is(scanner, ".align") && next(scanner)) {
			number = scanner->token;
			align = decimal(&number);
		} else if (is(scanner, "[") && next(scanner)) {
			number = scanner->token;
			count = decimal(&number);
		} else if (type_bytes(scanner)) {
			bytes = type_bytes(scanner);
		}
	}
	align = align > bytes ? align : bytes;
	if (!scanner->token || !bytes || !count || align & (align - 1) || count > 1 << 20)
		return PTX_MALFORMED;
	rows = ptx_grow(entry->parameters, entry->parameter_count, sizeof(*rows));
	if (!rows)
		return PTX_NO_MEMORY;
	entry->parameters = rows;
	if (entry->parameter_count)
		end = rows[entry->parameter_count - 1].offset +
		      rows[entry->parameter_count - 1].bytes;
	rows[entry->parameter_count++] = (struct ptx_parameter){
	    .offset = (end + align - 1) & ~(align - 1), .bytes = bytes * count};
	return PTX_OK;
}

/* The current token is `.entry`. */
static enum ptx_result read_entry(struct scanner *scanner, struct ptx *ptx)
{
	struct ptx_entry *entries = ptx_grow(ptx->entries, ptx->entry_count, sizeof(*entries));
	struct ptx_entry *entry;
	enum ptx_result result = PTX_OK;

	if (!entries)
		return PTX_NO_MEMORY;
	ptx->entries = entries;
	if (!next(scanner) || !is_word(*scanner->token))
		return PTX_MALFORMED;
	entry = &entries[ptx->entry_count];
	*entry = (struct ptx_entry){.duration_ns = scanner->duration_ns,
				    .duration_argument = scanner->duration_argument,
				    .local_bytes = scanner->local_bytes};
	scanner->duration_ns = PTX_DURATION_DEFAULT;
	scanner->duration_argument = PTX_NO_ARGUMENT;
	scanner->local_bytes = 0;
	entry->name = strndup(scanner->token, scanner->length);
	if (!entry->name)
		return PTX_NO_MEMORY;
	ptx->entry_count++;
	if (!next(scanner))
		return PTX_MALFORMED;
	if (is(scanner, "(")) {
		while (result == PTX_OK && !is(scanner, ")") && next(scanner))
			if (is(scanner, ".param"))
				result = read_parameter(scanner, entry);
		if (result != PTX_OK)
			return result;
		if (!scanner->token)
			return PTX_MALFORMED;
	}
	/* Directives such as .maxntid may precede the body. */
	while (!is(scanner, "{"))
		if (is(scanner, ";") || !next(scanner))
			return is(scanner, ";") ? PTX_OK : PTX_MALFORMED;
	return skip_brackets(scanner, "{", "}") ? PTX_OK : PTX_MALFORMED;
}

/*
 * `.global .align 4 .b8 name[8] = {...};`, the current token is `.global` or `.const`. An external
 * variable is another module's.
 */
static enum ptx_result read_variable(struct scanner *scanner, struct ptx *ptx, bool external)
{
	uint64_t bytes = 0, align = 1, count = 1, factor = 1;
	struct ptx_variable row = {0};
	const char *name = NULL, *number;
	size_t name_bytes = 0;

	while (next(scanner) && !is(scanner, ";") && !is(scanner, "=")) {
		if (is(scanner, ".align")) {
			number = scanner->at + strspn(scanner->at, " \t");
			align = decimal(&number);
		} else if (is(scanner, ".v2") || is(scanner, ".v4")) {
			factor = (uint64_t)(scanner->token[2] - '0');
		} else if (is(scanner, "[")) {
			number = scanner->at + strspn(scanner->at, " \t");
			if (__builtin_mul_overflow(count, decimal(&number), &count))
				return PTX_MALFORMED;
			if (!skip_brackets(scanner, "[", "]"))
				return PTX_MALFORMED;
		} else if (type_bytes(scanner)) {
			bytes = type_bytes(scanner) * factor;
		} else if (is_word(*scanner->token) && *scanner->token != '.') {
			name = scanner->token;
			name_bytes = scanner->length;
		}
	}
	while (scanner->token && !is(scanner, ";"))
		next(scanner);
	if (!scanner->token || !name)
		return PTX_MALFORMED;
	/* One of a type without a size is a texture. */
	if (external || !bytes || !count)
		return PTX_OK;
	if (__builtin_mul_overflow(bytes, count, &row.bytes) || row.bytes > VARIABLE_MAX_BYTES ||
	    align & (align - 1) || align > VARIABLE_MAX_BYTES ||
	    ptx->variables_bytes > VARIABLE_MAX_BYTES)
		return PTX_MALFORMED;
	align = align > bytes ? align : bytes;
	row.offset = (ptx->variables_bytes + align - 1) / align * align;
	return ptx_variable_add(ptx, name, name_bytes, row);
}

static enum ptx_result read_module(struct scanner *scanner, struct ptx *ptx)
{
	const char *number;
	enum ptx_result result = PTX_OK;
	bool after_extern = false;

	if (!next(scanner) || !is(scanner, ".version"))
		return PTX_NOT_PTX;
	if (!next(scanner))
		return PTX_MALFORMED;
	number = scanner->token;
	ptx->version = 10 * (unsigned int)decimal(&number);
	if (*number++ != '.')
		return PTX_MALFORMED;
	ptx->version += (unsigned int)decimal(&number);
	while (result == PTX_OK && next(scanner)) {
		bool external = after_extern;

		after_extern = is(scanner, ".extern");
		if (is(scanner, ".target") && next(scanner) && scanner->length > 3) {
			number = scanner->token + 3;
			ptx->target = (unsigned int)decimal(&number);
		} else if (is(scanner, ".entry")) {
			result = read_entry(scanner, ptx);
		} else if (is(scanner, ".global") || is(scanner, ".const")) {
			result = read_variable(scanner, ptx, external);
		} else if (is(scanner, "{") && !skip_brackets(scanner, "{", "}")) {
			result = PTX_MALFORMED;
		} else if (is(scanner, "}")) {
			result = PTX_MALFORMED;
		}
	}
	if (result == PTX_OK && (scanner->broken || !ptx->target))
		result = PTX_MALFORMED;
	return result;
}

enum ptx_result ptx_parse(const char *text, struct ptx **out)
{
	struct scanner scanner = {.at = text,
				  .duration_ns = PTX_DURATION_DEFAULT,
				  .duration_argument = PTX_NO_ARGUMENT,
				  .module_bytes = PTX_BYTES_DEFAULT};
	struct ptx *ptx = calloc(1, sizeof(*ptx));
	enum ptx_result result;

	if (!ptx)
		return PTX_NO_MEMORY;
	ptx->references = 1;
	result = read_module(&scanner, ptx);
	if (result == PTX_OK)
		result = ptx_finish(ptx);
	if (result != PTX_OK) {
		ptx_release(ptx);
		return result;
	}
	ptx->code_bytes = scanner.module_bytes;
	*out = ptx;
	return PTX_OK;
}
