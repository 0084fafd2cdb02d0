"""The control plane, which determines what the data plane serves and changes it without interruption.

It is not involved in answering requests. `lanes` contains the lane table, `state` the persistent state,
`controller` all changes of the table, `watcher` the polling of the registry, `service` the gRPC service and
`dataplane` the interface to Rust.
"""
