"""Converters from other libraries' models to raw trees. They run on a data scientist's side, at build time."""
