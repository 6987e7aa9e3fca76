"""Groups of devices: how members find each other, and what they do together."""
