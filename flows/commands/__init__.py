"""One file a command: what is asked on the command line, and what is printed."""
