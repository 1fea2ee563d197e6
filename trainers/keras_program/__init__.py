"""An unchanged Keras program: its calls of `fit` train under any strategy."""
