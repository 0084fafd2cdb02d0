"""The control plane: decides what the data plane serves, and changes it without a gap.

It never takes part in answering a request. `lanes` is the table, `state` what survives a
restart, `controller` the one place where the table changes, `watcher` follows the registry,
`service` is the gRPC face, `dataplane` the door to Rust.
"""
