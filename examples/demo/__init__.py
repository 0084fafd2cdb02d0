"""The whole way through, once: data, training, bundles, registry, server, traffic, swap, log, report."""
