"""The dialogue with the container runtime: NRI requests in, adjustments and refusals out."""
