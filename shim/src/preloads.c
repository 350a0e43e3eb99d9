/* See preloads.h. */
#include "preloads.h"

#include <stddef.h>
#include <string.h>

#include "text.h"

#define NAME	   "LD_PRELOAD="
#define SEPARATORS " :"

bool vgpu_preloads_is(const char *entry)
{
	return vgpu_text_after(entry, NAME);
}

const char *vgpu_preloads_find(char *const *environment)
{
	const char *found = NULL;

	for (; *environment; environment++)
		if (vgpu_preloads_is(*environment))
			found = *environment;
	return found;
}

static const char *names_of(const char *entry)
{
	return entry ? entry + sizeof(NAME) - 1 : "";
}

/* The next name at or behind `at`, and its length: 0 at the end. */
static const char *next_name(const char *at, size_t *length)
{
	at += strspn(at, SEPARATORS);
	*length = strcspn(at, SEPARATORS);
	return at;
}

bool vgpu_preloads_names(const char *entry, const char *library, int last)
{
	size_t wanted = strlen(library), length;
	const char *name = next_name(names_of(entry), &length);

	for (int number = 0; length && number <= last; number++) {
		if (length == wanted && memcmp(name, library, length) == 0)
			return true;
		name = next_name(name + length, &length);
	}
	return false;
}

/* The loader puts directories before a name, and in place of what it expands. */
static bool ends_alike(const char *name, size_t length, const char *path)
{
	size_t path_length = strlen(path), same = 0;

	while (same < length && same < path_length &&
	       name[length - 1 - same] == path[path_length - 1 - same]) {
		if (name[length - 1 - same] == '/')
			return true;
		same++;
	}
	return same == length && (same == path_length || path[path_length - 1 - same] == '/');
}

int vgpu_preloads_place(const char *entry, const char *path, int first)
{
	size_t length;
	const char *name = next_name(names_of(entry), &length);

	for (int number = 0; length; number++) {
		if (number >= first && ends_alike(name, length, path))
			return number;
		name = next_name(name + length, &length);
	}
	return first;
}

uint64_t vgpu_preloads_room(const char *entry, const char *library)
{
	return sizeof(NAME) + strlen(names_of(entry)) + strlen(library) + sizeof("::");
}

static char *append(char *to, const char *text, size_t length)
{
	memcpy(to, text, length);
	return to + length;
}

void vgpu_preloads_insert(const char *entry, const char *library, int place, char *into)
{
	const char *names = names_of(entry);
	size_t length;
	const char *behind = next_name(names, &length);

	while (length && place--)
		behind = next_name(behind + length, &length);
	into = append(into, NAME, sizeof(NAME) - 1);
	into = append(into, names, (size_t)(behind - names));
	if (behind > names && !length)
		*into++ = ':';
	into = append(into, library, strlen(library));
	if (length)
		*into++ = ':';
	append(into, behind, strlen(behind) + 1);
}

void vgpu_preloads_alone(const char *library, char *into)
{
	into = append(into, NAME, sizeof(NAME) - 1);
	append(into, library, strlen(library) + 1);
}
