"""Explanations of bundles, as figures and pages.

figures    the figures of a global explanation
page       an explanation as one self-contained page
"""
