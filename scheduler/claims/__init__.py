"""Templates of ResourceClaims for requests by Koordinator's names, on nodes that serve claims."""
