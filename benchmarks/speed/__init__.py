"""How fast the project trains beside what a user would pick instead."""
