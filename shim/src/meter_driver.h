/*
 * A meter and its driver, for meter*.c alone: what is reserved and used, and how the driver gives
 * it back. The caller holds the meter's lock.
 */
#ifndef VGPU_METER_DRIVER_H
#define VGPU_METER_DRIVER_H

#include "meter_table.h"

/* What the pool or the graphs have taken of the card. False: the driver does not say. */
bool vgpu_meter_reserved(const struct vgpu_meter *meter, uint64_t *bytes);
/* The same; where the driver does not say, what was said before. */
uint64_t vgpu_meter_last_reserved(const struct vgpu_meter *meter);

void vgpu_meter_set_charged(struct vgpu_meter *meter, uint64_t bytes);
/* Charge what is reserved, whatever the limit; true if it has become less. */
bool vgpu_meter_follow(struct vgpu_meter *meter);

/*
 * Undo the call (if there is one), and have the driver give back what is above keep_bytes and not
 * in use. A capture, whoever makes it, must not mind.
 */
CUresult vgpu_meter_shrink(struct vgpu_meter *meter, const struct vgpu_metered_call *call,
			   uint64_t keep_bytes);

#endif
