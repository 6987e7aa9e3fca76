"""``null``: the driver of a device that executes nothing. A new driver can begin as a copy of this folder."""
