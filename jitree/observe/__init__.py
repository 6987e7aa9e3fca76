"""Shows what each dispatch of a program reads and makes while it runs."""
