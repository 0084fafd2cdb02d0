"""The Kubernetes operator: runs scoring servers that `ScorerServer` and `ScorerCheckpoint` objects describe.

`spec` reads the two resources, `documents` makes a server's settings of them, and `objects`, `pods` and `job`
build what the operator creates. `drain` decides the next step of a deletion, and `status` describes what is
there. These modules are pure functions. `cluster` calls the API server, `scrape` reads metrics of pods,
`reconcile` joins everything, and `handlers` connects it to kopf. It needs scorer[operator].
"""
