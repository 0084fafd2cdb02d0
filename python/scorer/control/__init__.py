"""The control plane, which determines what the data plane serves and changes it without interruption.

It is not involved in answering requests. `lanes` contains the lane table, `loaded` the bundles in memory and
their copies, `active` the one sequence by which the table changes, `state` what is saved. `controller` has
the operations, `restore` the start, `quarantine` the withdrawal of bundles. `watcher` polls the registry,
`service` is the gRPC service and `dataplane` the interface to Rust.
"""
