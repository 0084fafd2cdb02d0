"""Programs that use scorer as its users do. None of them is part of the wheel.

* `examples.demo` trains, publishes, serves, swaps and learns on one machine (`make demo`).
* `examples.simulators` writes transactions, payments and weeks of logged decisions (docs/simulators.md).
* `examples.loop` runs learning for weeks on simulated payments, beside older solutions.

Nothing in `python/scorer` imports this package.
"""
