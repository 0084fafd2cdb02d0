"""Data sets on record: what a file contains, whether it passed its checks, and what was made of it.

records   records of data sets as JSON files in one directory
facts     the rows of a file: ranges, duplicates, labels, windows and counts for later comparisons
changes   differences to the last data set with the same name and purpose
"""
