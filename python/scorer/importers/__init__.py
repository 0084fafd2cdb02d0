"""Converters from models of training libraries to raw trees. They run when a bundle is built."""
