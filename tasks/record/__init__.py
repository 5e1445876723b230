"""What a run leaves: statement, model, files, and its place in MLflow."""
