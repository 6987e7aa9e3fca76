"""Groups devices: their members find each other and compute together."""
