"""A mutation fuzzer: damaged modules are loaded and called in processes that may die.

``python -m tests.fuzz --minutes 60`` runs until the time is over and prints what it found;
``python -m tests.fuzz --replay control:plain:1234`` repeats one case. Anything but success or a StatusError
is a bug: another exception, a crash, a hang while loading, a session that does not work afterwards. A damaged
program that loops for ever is not.
"""
