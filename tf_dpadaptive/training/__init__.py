"""Private training of Keras models."""
