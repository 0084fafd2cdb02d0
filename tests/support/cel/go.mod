// The conformance cases of CEL are files of this module; `make cel-spec` downloads it and compiles nothing.
module scorer.test/cel

go 1.26

require cel.dev/expr v0.26.0
