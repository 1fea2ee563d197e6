"""A model whose layers are divided into stages, each on a device of its own."""
