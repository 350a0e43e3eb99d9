"""The distributor: publishes the library on the node, so that it is replaced without the agent."""
