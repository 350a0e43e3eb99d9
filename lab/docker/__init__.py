"""Private Docker daemons with simulated GPUs, for the tests of containers without Kubernetes."""
