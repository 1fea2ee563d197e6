"""Scripts that a user would write instead, without training code of this project."""
