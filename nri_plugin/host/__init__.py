"""Files, mounts, processes and CDI specs of this host. Everything here may block."""
