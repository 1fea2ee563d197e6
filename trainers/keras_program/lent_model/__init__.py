"""The model of a program while a strategy trains it, and from one `fit` to the next."""
