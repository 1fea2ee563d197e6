"""Scripts that a user would write instead, without any code of this project."""
