"""A fraud model on card transactions, by the method of the Fraud Detection Handbook."""
