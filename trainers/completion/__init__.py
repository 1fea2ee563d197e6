"""Completion of the command line by the Tab key, in bash, fish and zsh."""
