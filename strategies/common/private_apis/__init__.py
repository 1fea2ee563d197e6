"""Every private name of TensorFlow and Keras in this project, by subject.

Each is here because there is no public name. tests/test_tensorflow_facts.py fails
when one of them changes its meaning.
"""
