/* The functions that model.py calls. cffi reads this file, so it contains only declarations. */
struct model_options {
	uint64_t slice_ns, switch_ns, wake_ns;
	bool limited;
};

/* A thread repeats: launch these kernels with CPU time between them; after `launches` launches (0:
 * never) wait for them and use the CPU for `step_gap_ns`. Before that: launch the first kernel
 * `first_launches` times, when it takes `first_ns`. */
struct model_thread {
	uint64_t kernel_ns[160];
	uint32_t kernel_count, launches;
	uint64_t gap_ns, step_gap_ns;
	uint64_t first_ns;
	uint32_t first_launches;
};

struct model;

struct model *model_new(const struct model_options *options, uint64_t now_ns);
void model_free(struct model *model);
/* Add a process with a first thread. Add a thread with a stream of its own to a process. */
int model_add(struct model *model, int container, const struct model_thread *thread);
void model_add_thread(struct model *model, int process, const struct model_thread *thread);
void model_write_lease(struct model *model, int container, uint32_t offset, const void *data,
		       uint32_t bytes);
/* out: the container's struct vgpu_region_compute. */
void model_sample(const struct model *model, int container, uint64_t out[8]);
/* Write that record, as a program in the container may. */
void model_overwrite(struct model *model, int container, const uint64_t record[8]);
void model_kill(struct model *model, int container);
/* Stop the container's processes until then, as SIGSTOP does. The GPU goes on. */
void model_freeze(struct model *model, int container, uint64_t until_ns);
void model_check_launches(struct model *model, int container, bool checked);
void model_run(struct model *model, uint64_t until_ns);
/* out: the GPU's time for the process, the GPU's idle time, the first thread's launches and steps.
 */
void model_read(const struct model *model, int process, uint64_t out[4]);
/* The durations of the first thread's latest steps in microseconds; return their number. */
uint32_t model_steps(const struct model *model, int process, uint32_t *out_us, uint32_t most);
