"""What the driver reports of GPUs, asked in child processes under deadlines."""
