"""What the agent reads from the API server and publishes there."""
