"""Training, evaluation and what they leave behind."""

from trainers.library import TrainingResult, configure, train

__all__ = ["TrainingResult", "configure", "train"]
