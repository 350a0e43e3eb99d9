/*
 * NVML's view of the cards: which there are, and how to ask one of them.
 *
 * nvml.c owns the links and their lock; nvml_device.c and nvml_load.c answer questions through this
 * header.
 */
#ifndef SIMGPU_NVML_CARDS_H
#define SIMGPU_NVML_CARDS_H

#include <stdbool.h>

#include "client.h"
#include "nvml_abi.h"

/* What a device handle points to. Handles stay valid over shutdown and a new init. */
struct nvmlDevice_st {
	struct sim_link *link;
	bool instance; /* a card's MIG instance, not the card */
};

/*
 * Between nvml_enter and nvml_leave the links stay open. nvml_enter answers UNINITIALIZED before
 * nvmlInit, and INVALID_ARGUMENT for a handle that is none of ours; you must call nvml_leave
 * exactly where it answered SUCCESS. nvml_enter_any asks for no device.
 */
nvmlReturn_t nvml_enter(nvmlDevice_t device);
nvmlReturn_t nvml_enter_any(void);
void nvml_leave(void);

/* Valid between enter and leave. */
int nvml_card_count(void);
nvmlDevice_t nvml_card(int index);

bool nvml_has_instance(const struct sim_card *card);

/* The card that an instance is of, and the instance that a card has if it has one. */
nvmlDevice_t nvml_card_of(nvmlDevice_t instance);
nvmlDevice_t nvml_instance_of(nvmlDevice_t card);
unsigned int nvml_index(nvmlDevice_t device);

/* What the card is, for who has not entered. */
nvmlReturn_t nvml_describe(nvmlDevice_t device, struct sim_card *card);

/* One request to the card, its status as NVML says it. */
nvmlReturn_t nvml_ask(nvmlDevice_t device, enum sim_op op, void *reply, uint32_t cap,
		      uint32_t *got);

/* "GPU-...", or "MIG-..." of an instance, into `text` of NVML_DEVICE_UUID_BUFFER_SIZE bytes. */
void nvml_format_uuid(const struct sim_card *card, bool instance, char *text);

/* Copies with the final NUL, or says INSUFFICIENT_SIZE. */
nvmlReturn_t nvml_copy_text(const char *text, char *out, unsigned int out_bytes);

/* Microseconds since 1970, as NVML stamps its samples. */
unsigned long long nvml_now_us(void);

#endif
