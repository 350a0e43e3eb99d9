int mount(const char *source, const char *target, const char *type, unsigned long flags,
	  const char *options);
int umount2(const char *target, int flags);
int statfs(const char *path, long words[64]);

/* Called for openat2 and futex, which have no functions of their own in libc. */
long syscall(long number, ...);

struct open_how {
	uint64_t flags;
	uint64_t mode;
	uint64_t resolve;
};
