"""Statistics that gates, reports, off-policy evaluation and experiments share: pure functions over arrays.

The package imports nothing else of ours and does no input or output. Its functions raise `ValueError` for
arguments that have no answer; the callers check what users can give and name it in their own errors.

    proportions    shares of rows: Wilson, and Newcombe for differences
    means          Student's intervals, effective sample size
    quantiles      quantiles and their distribution-free bounds
    roc            areas under ROC curves with DeLong's covariance
    ranking        the top of a ranking, average precision, rank correlation of a tail
    blocks         the bootstrap by day
    distances      PSI, Kullback-Leibler and Jensen-Shannon over common bins
    interim        how interim analyses share one false-alarm rate
    sequences      confidence sequences: bounds that hold at every sample size at once
    sample_ratio   whether traffic was split as planned
"""
