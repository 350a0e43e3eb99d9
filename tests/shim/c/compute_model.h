/* The functions that model.py calls. cffi reads this file, so it contains only declarations. */
struct model_options {
	uint64_t slice_ns, launch_ns, wake_ns;
	bool limited;
};

struct model;

struct model *model_new(const struct model_options *options, uint64_t now_ns);
void model_free(struct model *model);
int model_add(struct model *model, int container, const uint64_t *kernel_ns, uint32_t count,
	      bool waits_each);
void model_write_lease(struct model *model, int container, uint32_t offset, const void *data,
		       uint32_t bytes);
void model_sample(const struct model *model, int container, uint64_t out[3]);
void model_kill(struct model *model, int container);
void model_check_launches(struct model *model, int container, bool checked);
void model_run(struct model *model, uint64_t until_ns);
/* out: the work done for the program, and the GPU's idle time. */
void model_read(const struct model *model, int program, uint64_t out[2]);
