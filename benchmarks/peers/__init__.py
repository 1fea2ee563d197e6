"""What a user would write instead: plain scripts, each with nothing of this project."""
