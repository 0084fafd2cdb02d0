"""Explanations and model cards of bundles.

documents  documents about a bundle that are stored beside it: explanations and the author's text
figures    the figures of a global explanation
card       the model card, made from what is on record
markdown   a model card as Markdown
page       an explanation as one self-contained page
"""
