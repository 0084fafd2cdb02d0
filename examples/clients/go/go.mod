module scorer/examples/clients/go

go 1.26.0

// The programs that generate.sh runs. They have the versions of the libraries below.
tool (
	google.golang.org/grpc/cmd/protoc-gen-go-grpc
	google.golang.org/protobuf/cmd/protoc-gen-go
)

require (
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)
