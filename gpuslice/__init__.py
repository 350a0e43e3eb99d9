"""What the programs of gpuslice share: the contract, NVIDIA's driver, and Kubernetes' API."""
