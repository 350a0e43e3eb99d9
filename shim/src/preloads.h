/*
 * What the variable LD_PRELOAD says, and how our library gets in front of one of its libraries.
 *
 * Pure. The list is glibc's: names between blanks and colons, and of a variable that is there
 * twice the last one counts.
 */
#ifndef VGPU_PRELOADS_H
#define VGPU_PRELOADS_H

#include <stdbool.h>
#include <stdint.h>

/* Is that entry of an environment the variable. */
bool vgpu_preloads_is(const char *entry);

/* The one that counts, or NULL. */
const char *vgpu_preloads_find(char *const *environment);

/* Is the library among the names up to number `last`, from 0. */
bool vgpu_preloads_names(const char *entry, const char *library, int last);

/* Which name, from 0, the library at that path was loaded by. So many were loaded before it, but
 * names that led to nothing stand among theirs; where no name looks like it, `first`. */
int vgpu_preloads_place(const char *entry, const char *path, int first);

/* Room for what the two below write, `entry` being what there is now, or NULL. */
uint64_t vgpu_preloads_room(const char *entry, const char *library);

/* "LD_PRELOAD=..." with the library as name number `place`, or as the last one. */
void vgpu_preloads_insert(const char *entry, const char *library, int place, char *into);

/* With the library alone. */
void vgpu_preloads_alone(const char *library, char *into);

#endif
