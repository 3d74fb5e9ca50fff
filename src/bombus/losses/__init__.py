"""The maths, as pure functions on tensors."""
