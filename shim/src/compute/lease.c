#include "compute/lease.h"

#include <string.h>

#include "os/crc32.h"

/* A container whose lease has no coming window reads the lease again after this time at the
 * latest. */
#define LOOK_AGAIN_NS UINT64_C(20000000)

/* A record from further ahead is of another clock: the container is in a time namespace. */
#define AHEAD_MAX_NS UINT64_C(1000000000)

#define OWN_IN_FLIGHT_NS   UINT64_C(3000000)
#define WHOLE_IN_FLIGHT_NS UINT64_C(20000000)

static bool read_one(const volatile struct vgpu_lease_record *from, struct vgpu_lease_record *to)
{
	memcpy(to, (const void *)from, sizeof(*to));
	return to->sequence &&
	       to->checksum == vgpu_crc32((const char *)to, sizeof(*to) - sizeof(to->checksum));
}

bool vgpu_lease_read(const volatile struct vgpu_lease_record *pair, struct vgpu_lease_record *lease)
{
	struct vgpu_lease_record newest = {0}, record;

	for (int i = 0; i < 2; i++)
		if (read_one(&pair[i], &record) && record.sequence > newest.sequence)
			newest = record;
	if (!newest.sequence)
		return false;
	*lease = newest;
	return true;
}

/* The container's own part of the cycle. For all containers, cycles begin at multiples of their
 * length on the host's clock. */
static struct vgpu_turn own_turn(const struct vgpu_lease_record *lease, uint64_t now_ns)
{
	uint64_t cycle_ns = now_ns - now_ns % VGPU_LEASE_CYCLE_NS;
	uint64_t ppm_ns = VGPU_LEASE_CYCLE_NS / VGPU_LEASE_WHOLE_PPM;
	uint64_t start_ns = cycle_ns + lease->offset_ppm * ppm_ns;
	uint64_t end_ns = start_ns + lease->share_ppm * ppm_ns;
	struct vgpu_turn turn = {
	    .own = true, .exclusive = true, .start_ns = start_ns, .in_flight_ns = OWN_IN_FLIGHT_NS};

	if (lease->share_ppm >= VGPU_LEASE_WHOLE_PPM)
		return (struct vgpu_turn){.open = true,
					  .own = true,
					  .until_ns = now_ns + VGPU_LEASE_CYCLE_NS,
					  .in_flight_ns = WHOLE_IN_FLIGHT_NS};
	turn.open = now_ns >= start_ns && now_ns < end_ns;
	turn.until_ns = turn.open	    ? end_ns
			: now_ns < start_ns ? start_ns
					    : start_ns + VGPU_LEASE_CYCLE_NS;
	return turn;
}

/* The GPU time that the lane allows in all by now. */
static uint64_t allowed_ns(const struct vgpu_lease_record *lease, uint64_t now_ns)
{
	uint64_t more_ns, allowed_ns;

	if (!lease->lane_from_ns || now_ns < lease->lane_from_ns)
		return 0;
	more_ns = (uint64_t)((double)(now_ns - lease->lane_from_ns) * lease->lane_ppm /
			     VGPU_LEASE_WHOLE_PPM);
	allowed_ns = lease->lane_base_ns + more_ns;
	return allowed_ns < more_ns ? UINT64_MAX : allowed_ns;
}

struct vgpu_turn vgpu_lease_turn(const struct vgpu_lease_record *lease, uint64_t now_ns)
{
	struct vgpu_turn turn = {
	    .start_ns = lease->start_ns,
	    .in_flight_ns = lease->in_flight_us * UINT64_C(1000),
	    .allowed_ns = allowed_ns(lease, now_ns),
	    .lane_ppm = lease->lane_ppm,
	    .exclusive = lease->exclusive,
	};

	if (!lease->sequence || now_ns > lease->written_ns + VGPU_LEASE_STALE_NS ||
	    lease->written_ns > now_ns + AHEAD_MAX_NS)
		return own_turn(lease, now_ns);
	turn.open = now_ns >= lease->start_ns && now_ns < lease->end_ns;
	turn.until_ns = turn.open		   ? lease->end_ns
			: now_ns < lease->start_ns ? lease->start_ns
						   : now_ns + LOOK_AGAIN_NS;
	return turn;
}
