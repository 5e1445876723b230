"""What a training is of: one file a kind of model."""
