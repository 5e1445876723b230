"""What a configuration adds to a training: one file an option."""
