/*
 * A key that travels with an exported file descriptor: by it the importing process identifies which
 * memory of its container the descriptor names.
 *
 * The key is the offset of a shared lock of the open file description, which every copy of the
 * descriptor shares in every process: fork, dup and SCM_RIGHTS pass it on, and it ends with the
 * description. The kernel lists such locks in /proc/self/fdinfo. Nothing else of the description
 * changes, and nothing blocks: shared locks never conflict.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A new key, unique on the machine; of a multicast object, or of memory. */
uint64_t vgpu_export_key_new(bool multicast);
/* The key from the bytes of a handle that is not a descriptor: the same in each process. */
uint64_t vgpu_export_key_of(const void *bytes, uint64_t count, bool multicast);
bool vgpu_export_key_is_multicast(uint64_t key);

/* False: the kernel keeps no lock on such a file. */
bool vgpu_export_key_write(int fd, uint64_t key);
/* 0: the descriptor has none, or /proc does not show it. */
uint64_t vgpu_export_key_read(int fd);
