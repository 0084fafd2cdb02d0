package scorer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "scorer/examples/clients/go/scorerpb"
)

// Kind is the class of an error; errors.Is(err, scorer.DeadlineExceeded) tests for it.
type Kind string

// The classes of errors.
const (
	InvalidRequest     Kind = "INVALID_REQUEST"      // the request violates a rule; it fails again
	CheckpointNotFound Kind = "CHECKPOINT_NOT_FOUND" // the server has no such checkpoint
	Precondition       Kind = "PRECONDITION"         // the server's state does not allow the call
	IDConflict         Kind = "ID_CONFLICT"          // the id was used before with other content
	Access             Kind = "ACCESS"               // credentials are missing or not sufficient
	Unsupported        Kind = "UNSUPPORTED"          // the server has no such method
	Unavailable        Kind = "UNAVAILABLE"          // no replica can be reached, or none has the bundle
	DeadlineExceeded   Kind = "DEADLINE_EXCEEDED"    // no answer before the deadline
	Overloaded         Kind = "OVERLOADED"           // the server rejected the request for lack of capacity
	ServerFault        Kind = "SERVER_FAULT"         // internal error of the server
	Cancelled          Kind = "CANCELLED"            // the caller cancelled the call
)

// Error returns the name of the class.
func (k Kind) Error() string { return string(k) }

var kinds = map[codes.Code]Kind{
	codes.Canceled:           Cancelled,
	codes.InvalidArgument:    InvalidRequest,
	codes.OutOfRange:         InvalidRequest,
	codes.DeadlineExceeded:   DeadlineExceeded,
	codes.NotFound:           CheckpointNotFound,
	codes.AlreadyExists:      IDConflict,
	codes.PermissionDenied:   Access,
	codes.Unauthenticated:    Access,
	codes.ResourceExhausted:  Overloaded,
	codes.FailedPrecondition: Precondition,
	codes.Unimplemented:      Unsupported,
	codes.Unavailable:        Unavailable,
}

// Error is the error of every call.
type Error struct {
	Kind       Kind
	Checkpoint string
	RequestID  string
	Attempts   int // how often the request was sent
	Message    string
}

// Error returns one line with the class, the request and the server's message.
func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s (checkpoint %q, request %q, attempts %d)",
		e.Kind, e.Message, e.Checkpoint, e.RequestID, e.Attempts)
}

// Unwrap returns the class, for errors.Is.
func (e *Error) Unwrap() error { return e.Kind }

// unanswered returns whether no server answered, so that a fallback applies.
func (e *Error) unanswered() bool {
	return slices.Contains([]Kind{Unavailable, DeadlineExceeded, Overloaded, ServerFault}, e.Kind)
}

func newError(ctx context.Context, err error, checkpoint, requestID string, attempts int) *Error {
	kind, known := kinds[status.Code(err)]
	// A call that the caller did not cancel was cancelled by the server or by a proxy.
	if !known || kind == Cancelled && ctx.Err() == nil {
		kind = ServerFault
	}
	return &Error{kind, checkpoint, requestID, attempts, status.Convert(err).Message()}
}

func origin(served *pb.Served, logged bool, attempts int) Origin {
	source := Model
	if served.GetFallbackSource() != "" {
		source = ServerFallback
	}
	return Origin{
		source, served.GetFallbackSource(), served.GetFallbackReason(), served.GetBundle(), logged, attempts,
	}
}

func fallbackOrigin(failed *Error) Origin {
	return Origin{
		Source: ClientFallback, Fallback: "client", Reason: strings.ToLower(string(failed.Kind)),
		Attempts: failed.Attempts,
	}
}

func checkRequestID(id string) error {
	invalid := strings.ContainsFunc(id, func(r rune) bool { return r < ' ' || r > '~' })
	if len(id) < 1 || len(id) > 64 || invalid {
		return &Error{
			Kind: InvalidRequest, RequestID: id, Message: "a request id is 1 to 64 printable ASCII characters",
		}
	}
	return nil
}

// namedFeatures checks a request id and encodes the features of its request.
func namedFeatures(requestID string, features Features) (*pb.NamedFeatures, error) {
	if err := checkRequestID(requestID); err != nil {
		return nil, err
	}
	named := &pb.NamedFeatures{}
	for name, value := range features {
		feature := &pb.Feature{Name: name}
		switch given := value.(type) {
		case nil: // missing
		case bool:
			feature.Value = &pb.Feature_Flag{Flag: given}
		case string:
			feature.Value = &pb.Feature_Category{Category: given}
		case float64:
			feature.Value = &pb.Feature_Number{Number: given}
		case int:
			feature.Value = &pb.Feature_Number{Number: float64(given)}
		default:
			return nil, &Error{
				Kind: InvalidRequest, RequestID: requestID,
				Message: fmt.Sprintf("feature %q is a %T; pass a float64, an int, a string, a bool or nil", name, value),
			}
		}
		named.Features = append(named.Features, feature)
	}
	return named, nil
}
