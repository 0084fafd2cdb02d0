"""Feature sets, and the loader of the handbook's transactions for them."""
