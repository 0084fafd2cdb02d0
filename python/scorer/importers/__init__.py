"""Converters from other libraries' models to raw trees: a data scientist's side, at build time."""
