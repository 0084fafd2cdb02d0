"""A fraud model on card transactions, after the Fraud Detection Handbook."""
