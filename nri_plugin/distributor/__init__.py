"""The distributor: brings a library to the node, so that it is changed without the agent."""
