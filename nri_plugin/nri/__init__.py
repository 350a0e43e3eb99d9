"""Receives the container runtime's NRI requests, and answers with adjustments and refusals."""
