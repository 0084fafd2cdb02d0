"""Recorded lane tables, and the reconciler that brings every server in sync with them.

A table is recorded in the transaction that decides on it, before any server is called. The transaction states
the answer lanes; the observe lanes are derived from the change requests that are being observed at that time.
A crash therefore cannot separate a table from the change requests that it belongs to.
"""
