#!/bin/sh
# Writes the messages and the stub of scoring.proto into scorerpb. PROTOS is the directory that contains scorer/v1.
set -eu
cd "$(dirname "$0")"
protos=${PROTOS:-../../../protos}
package=scorer/examples/clients/go
file=scorer/v1/scoring.proto
GOBIN=$PWD/.tools go install tool
PATH=$PWD/.tools:$PATH protoc --proto_path="$protos" \
	--go_out=. --go_opt="module=$package,M$file=$package/scorerpb" \
	--go-grpc_out=. --go-grpc_opt="module=$package,M$file=$package/scorerpb" \
	"$file"
