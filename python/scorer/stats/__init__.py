"""Statistical functions over arrays, shared by gates, reports, off-policy evaluation and experiments.

The package imports no other package of scorer and does no I/O. Its functions raise `ValueError` for arguments
outside their domain. Callers check values that users can set and raise their own errors for them.

    proportions    shares of rows: Wilson, and Newcombe for differences
    means          Student's intervals, effective sample size
    quantiles      quantiles and their distribution-free bounds
    roc            areas under ROC curves with DeLong's covariance
    ranking        the top of a ranking, average precision, rank correlation of a tail
    blocks         the bootstrap by day
    distances      PSI, Kullback-Leibler and Jensen-Shannon over common bins
    interim        division of one false-alarm rate between interim analyses
    sequences      confidence sequences: bounds that hold at all sample sizes together
    sample_ratio   check that traffic was split as planned
    incidence      cumulative incidence of late events, with censoring
    groups         differences and ratios of shares between groups
"""
