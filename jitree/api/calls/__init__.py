"""Arguments and results of calls, between Python values and the VM's."""
