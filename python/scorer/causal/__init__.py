"""What a product is worth where nothing was randomised: adopters against matched units that never adopted.

settings    `[causal]` of a task's file
findings    rules that data can break
reading     tables in DuckDB: checks, selection, the panel
panel       values of units by month, in memory
windows     cohorts, periods before and after adoption
matching    nearest neighbours before adoption
estimate    the effect, with intervals by unit
regression  regression to the mean of adopters
checks      placebos, the trend before adoption, balance, chains, hidden bias
judging     which checks make an estimate unreliable
analysis    all of it in order
results     what was found, as values and as JSON
figures     charts
page        the report
merchants   the panel of merchants that adopt a policy, from decision logs
"""
