"""Lanes as recorded, and servers brought in step with them.

A table is recorded in the transaction that decides it, before any server is called. Answer lanes are what the
transaction says, observe lanes follow from the changes that are in the shadow then, so no crash can leave the
two apart from the changes that they belong to.
"""
