"""Trains the toy checkpoints: small Wan2.2 models that paint one moving shape as prompted."""
