// Package scorer is a client of the scorer server for checkout services.
//
//	client, err := scorer.New(scorer.Options{Addresses: []string{"10.0.0.1:7700", "10.0.0.2:7700"}})
//	id, err := scorer.RequestID("4711", 1)
//	answer, err := client.SelectAction(ctx, scorer.ActionRequest{
//		Checkpoint: "action.authorise", RequestID: id, Features: scorer.Features{"amount": 129.9},
//	})
//	report, err := client.ReportOutcome(ctx, answer.Decision, "authorised", 1, 0)
//
// client.go has the calls, attempts.go the deadlines, retries and hedging, replicas.go the connections,
// and errors.go the errors.
package scorer

//go:generate ./generate.sh

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"

	pb "scorer/examples/clients/go/scorerpb"
)

// Options of a client. The zero value of every field but Addresses is a sensible default.
type Options struct {
	// Addresses are the replicas, each as "host:port". A single name may stand for several replicas.
	Addresses []string
	// TLS are the files for TLS; nil: the connections are not encrypted.
	TLS *TLSFiles
	// Timeout is the time limit of a call whose context has no deadline; 0: 250 ms.
	Timeout time.Duration
	// Hedge is the delay after which a score without an answer is requested a second time; 0: never,
	// HedgeAtP95: the 95th percentile of the time that recent scores took.
	Hedge time.Duration
	// Retry is the policy for repeating failed attempts; zero fields have defaults.
	Retry RetryPolicy
}

// Features are the values of a request by name: a float64 or int, a string (category), a bool (flag), or nil (missing).
type Features map[string]any

// Decision identifies a decision in outcomes. Store it with the payment.
type Decision struct {
	Checkpoint string
	ID         string // empty if the client's own fallback answered
	Token      []byte // proves outcomes at every replica; empty if the servers sign none
}

// Source is what produced an answer.
type Source string

// The sources of an answer.
const (
	Model          Source = "model"
	ServerFallback Source = "server_fallback" // the server answered without the model
	ClientFallback Source = "client_fallback" // no server answered, and the request had a fallback
)

// Origin describes how an answer was produced.
type Origin struct {
	Source   Source
	Fallback string // name of the fallback, such as "static" or "client"; empty: the model answered
	Reason   string // reason of the fallback, such as "overload"; empty: the model answered
	Bundle   string // digest of the bundle that answered
	Logged   bool   // whether the decision is recorded as its checkpoint requires
	Attempts int    // how often the request was sent, hedges included
}

// ScoreRequest asks for a score at a checkpoint of kind "score".
type ScoreRequest struct {
	Checkpoint string
	RequestID  string // see RequestID
	Features   Features
	Entity     string         // key that assigns requests to lanes, such as a shopper token
	Fallback   *ScoreFallback // answer if no server answers in time; nil: an error
}

// ScoreFallback is the answer of Score without a server.
type ScoreFallback struct {
	Label string
	Score float64
}

// Score is the answer of Score.
type Score struct {
	Origin
	Decision Decision
	Score    float64 // calibrated probability
	Label    string  // label of the threshold band, such as "approve"
}

// ActionRequest asks for an action at a checkpoint of kind "action".
type ActionRequest struct {
	Checkpoint string
	RequestID  string // see RequestID
	Features   Features
	Entity     string
	Eligible   []string // ids of the actions to choose from; nil: all
	Fallback   string   // action to return if no server answers in time; empty: an error
}

// Action is the answer of SelectAction.
type Action struct {
	Origin
	Decision   Decision
	Action     string
	Propensity float64           // probability with which the action was drawn
	Factors    map[string]string // parts of the action, such as three_ds
	Replayed   bool              // whether the server repeated its earlier answer to this request id
}

// Reporter is who or what reports an outcome: "reviewer", "merchant", "issuer" or "scheme", and a short id that may be
// empty, such as the name of a feed.
type Reporter struct {
	Kind string
	ID   string
}

// Report is the answer of ReportOutcome.
type Report struct {
	Duplicate     bool // the same outcome was reported before
	DecisionKnown bool // this replica made the decision; false is no error
	Superseded    bool // a higher revision is recorded
	Proven        bool // the token proved the outcome, so that it is used for training
	Attempts      int
}

// Client calls the replicas of a server. It may be used by several goroutines. Create one per process and keep it.
type Client struct {
	connection *grpc.ClientConn
	service    pb.ScoringServiceClient
	timeout    time.Duration
	attempts   *attempts
}

// New returns a client. The first call opens the connections.
func New(options Options) (*Client, error) {
	connection, err := connect(options.Addresses, options.TLS)
	if err != nil {
		return nil, err
	}
	timeout := options.Timeout
	if timeout <= 0 {
		timeout = 250 * time.Millisecond
	}
	return &Client{
		connection: connection,
		service:    pb.NewScoringServiceClient(connection),
		timeout:    timeout,
		attempts:   newAttempts(options.Retry, options.Hedge, timeout),
	}, nil
}

// Close closes the connections. Calls in flight end with an error.
func (c *Client) Close() error { return c.connection.Close() }

// RequestID returns the request id of one attempt to pay: the same payment and attempt always have the same id, so
// that a repeated call, also after a restart of the caller, is the same request. The payment must not be a card
// number, because request ids appear in logs.
func RequestID(payment string, attempt int) (string, error) {
	id := fmt.Sprintf("%s-attempt-%d", payment, attempt)
	return id, checkRequestID(id)
}

// Score returns the score of one event. It may be hedged: a score has no effect beyond its record, and the token in
// the answer names the record that counts.
func (c *Client) Score(ctx context.Context, request ScoreRequest) (Score, error) {
	named, err := namedFeatures(request.RequestID, request.Features)
	if err != nil {
		return Score{}, err
	}
	message := &pb.ScoreRequest{
		Checkpoint: request.Checkpoint, RequestId: request.RequestID, Entity: request.Entity,
		Features: &pb.ScoreRequest_Named{Named: named}, IncludeToken: true,
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	reply, sent, err := hedged(ctx, c.attempts, message, c.service.Score)
	if err != nil {
		failed := newError(ctx, err, request.Checkpoint, request.RequestID, sent)
		if request.Fallback != nil && failed.unanswered() {
			return Score{
				Origin: fallbackOrigin(failed), Score: request.Fallback.Score, Label: request.Fallback.Label,
			}, nil
		}
		return Score{}, failed
	}
	return Score{
		Origin:   origin(reply.Served, reply.Logged, sent),
		Decision: Decision{request.Checkpoint, reply.DecisionId, reply.DecisionToken},
		Score:    reply.Score,
		Label:    reply.Decision,
	}, nil
}

// SelectAction returns the action that the policy drew. It is retried but never hedged; see the README.
func (c *Client) SelectAction(ctx context.Context, request ActionRequest) (Action, error) {
	named, err := namedFeatures(request.RequestID, request.Features)
	if err != nil {
		return Action{}, err
	}
	message := &pb.SelectActionRequest{
		Checkpoint: request.Checkpoint, RequestId: request.RequestID, Entity: request.Entity,
		Features: &pb.SelectActionRequest_Named{Named: named},
	}
	if request.Eligible != nil {
		message.Eligible = &pb.EligibleActions{Ids: request.Eligible}
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	reply, sent, err := retried(ctx, c.attempts, message, c.service.SelectAction)
	if err != nil {
		failed := newError(ctx, err, request.Checkpoint, request.RequestID, sent)
		if request.Fallback != "" && failed.unanswered() {
			return Action{Origin: fallbackOrigin(failed), Action: request.Fallback, Propensity: 1}, nil
		}
		return Action{}, failed
	}
	return Action{
		Origin:     origin(reply.Served, reply.Logged, sent),
		Decision:   Decision{request.Checkpoint, reply.DecisionId, reply.DecisionToken},
		Action:     reply.Action,
		Propensity: reply.Propensity,
		Factors:    reply.Factors,
		Replayed:   reply.Replayed,
	}, nil
}

// ReportOutcome reports what became known about a decision, with the decision's token. A repeated report has no
// further effect; another value needs a higher revision. At most one reporter may be given.
func (c *Client) ReportOutcome(
	ctx context.Context, decision Decision, kind string, value float64, revision uint32, reporters ...Reporter,
) (Report, error) {
	if decision.ID == "" {
		return Report{}, &Error{
			Kind: InvalidRequest, Checkpoint: decision.Checkpoint,
			Message: "the decision has no id, because the client's fallback answered; report no outcome for it",
		}
	}
	message := &pb.ReportOutcomeRequest{
		Checkpoint: decision.Checkpoint, DecisionId: decision.ID, DecisionToken: decision.Token,
		Kind: kind, Value: value, Revision: revision,
	}
	for _, source := range reporters {
		number, known := pb.OutcomeSourceKind_value["OUTCOME_SOURCE_KIND_"+strings.ToUpper(source.Kind)]
		if !known {
			return Report{}, &Error{
				Kind: InvalidRequest, Checkpoint: decision.Checkpoint,
				Message: "source \"" + source.Kind + "\" is none of reviewer, merchant, issuer, scheme",
			}
		}
		message.Source = &pb.OutcomeSource{Kind: pb.OutcomeSourceKind(number), Id: source.ID}
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	reply, sent, err := retried(ctx, c.attempts, message, c.service.ReportOutcome)
	if err != nil {
		return Report{}, newError(ctx, err, decision.Checkpoint, decision.ID, sent)
	}
	return Report{reply.Duplicate, reply.DecisionKnown, reply.Superseded, reply.Proven, sent}, nil
}

// limit gives a call without a deadline that of the client.
func (c *Client) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, given := ctx.Deadline(); given {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.timeout)
}
