"""Rule packs: eligibility rules of regulations and card schemes, which a team maps to its own names.

A pack is a TOML file of this package: a rule set, and the features and factors of actions that its rules
need. `pack` reads packs, `mapping` relates their names to those of a bundle, and `write` writes the rule set
of a bundle.
"""
