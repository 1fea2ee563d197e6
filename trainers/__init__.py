"""Training, evaluation and what they leave behind."""
