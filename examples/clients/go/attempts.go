package scorer

import (
	"context"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// HedgeAtP95 as Options.Hedge sends a score again after the 95th percentile of the time that recent scores took.
const HedgeAtP95 time.Duration = -1

// RetryPolicy bounds the attempts after one that ended with UNAVAILABLE, the only status that is repeated. All
// attempts of a call send the same bytes, and so the same request id, within the same deadline. The wait before
// repetition n (from 0) is drawn uniformly from [0, min(Cap, Base * 2^n)].
type RetryPolicy struct {
	Attempts int           // most attempts of one call; 0: 3; 1: no retries
	Base     time.Duration // 0: 10 ms
	Cap      time.Duration // 0: 100 ms
	Tokens   float64       // size of the budget; 0: 100, which allows 50 retries at once
}

// budget is the token bucket of gRFC A6. A failure (or a hedge) takes a token, a success returns a tenth of one, and
// another attempt needs more than half of the tokens. In the long run, at most about a tenth of the attempts are
// additional, and none while all replicas fail.
type budget struct {
	lock         sync.Mutex
	tokens, most float64
}

const hedgeTokens = 10

func (b *budget) succeeded() {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.tokens = math.Min(b.most, b.tokens+0.1)
}

// spend takes a token, and returns whether another attempt is allowed.
func (b *budget) spend() bool {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.tokens = math.Max(0, b.tokens-1)
	return b.tokens > b.most/2
}

// percentile follows the 95th percentile of a duration: a slower sample raises the estimate by 10 %, a faster one
// lowers it by 0.5 %, which is in balance where 5 % of the samples are slower.
type percentile struct{ nanoseconds atomic.Int64 }

func (p *percentile) observe(slower bool, most time.Duration) {
	factor := 0.995
	if slower {
		factor = 1.1
	}
	next := time.Duration(float64(p.nanoseconds.Load()) * factor)
	p.nanoseconds.Store(int64(min(max(next, time.Millisecond), most)))
}

// attempts is the state that all calls of a client share.
type attempts struct {
	policy  RetryPolicy
	hedge   time.Duration
	timeout time.Duration
	retries budget
	hedges  budget
	p95     percentile
}

func newAttempts(policy RetryPolicy, hedge, timeout time.Duration) *attempts {
	if policy.Attempts <= 0 {
		policy.Attempts = 3
	}
	if policy.Base <= 0 {
		policy.Base = 10 * time.Millisecond
	}
	if policy.Cap <= 0 {
		policy.Cap = 100 * time.Millisecond
	}
	if policy.Tokens <= 0 {
		policy.Tokens = 100
	}
	made := &attempts{
		policy: policy, hedge: hedge, timeout: timeout,
		retries: budget{tokens: policy.Tokens, most: policy.Tokens},
		hedges:  budget{tokens: hedgeTokens, most: hedgeTokens},
	}
	made.p95.nanoseconds.Store(int64(timeout / 2))
	return made
}

// method is a method of the generated stub.
type method[Request, Reply any] func(context.Context, *Request, ...grpc.CallOption) (*Reply, error)

// retried sends a request and repeats it while that is safe and allowed. It returns how often it was sent.
func retried[Request, Reply any](
	ctx context.Context, shared *attempts, request *Request, call method[Request, Reply],
) (*Reply, int, error) {
	for attempt := 1; ; attempt++ {
		var trailer metadata.MD
		reply, err := call(ctx, request, grpc.Trailer(&trailer))
		if err == nil {
			shared.retries.succeeded()
			return reply, attempt, nil
		}
		wait, again := shared.wait(status.Code(err), trailer, attempt)
		if !again || !sleep(ctx, wait) {
			return nil, attempt, err
		}
	}
}

// wait returns the time until the next attempt, and whether there is one.
func (a *attempts) wait(code codes.Code, trailer metadata.MD, attempt int) (time.Duration, bool) {
	if code != codes.Unavailable {
		return 0, false
	}
	if allowed := a.retries.spend(); !allowed || attempt >= a.policy.Attempts {
		return 0, false
	}
	if pushback := trailer.Get("grpc-retry-pushback-ms"); len(pushback) > 0 {
		// By gRFC A6, a value that is no number from 0 forbids the retry.
		milliseconds, err := strconv.ParseUint(pushback[0], 10, 31)
		return time.Duration(milliseconds) * time.Millisecond, err == nil
	}
	limit := min(a.policy.Cap, a.policy.Base<<(attempt-1))
	return time.Duration(rand.Float64() * float64(limit)), true
}

// sleep waits, and returns false at once if the deadline would pass before.
func sleep(ctx context.Context, wait time.Duration) bool {
	if deadline, given := ctx.Deadline(); given && time.Until(deadline) <= wait {
		return false
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// hedged is retried, with a second copy of the request if the first is not answered within the delay. The first
// answer is returned, and the other copy is cancelled.
func hedged[Request, Reply any](
	ctx context.Context, shared *attempts, request *Request, call method[Request, Reply],
) (*Reply, int, error) {
	delay := shared.hedge
	if delay == 0 {
		return retried(ctx, shared, request, call)
	}
	if delay < 0 {
		delay = time.Duration(shared.p95.nanoseconds.Load())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		reply *Reply
		err   error
	}
	var sent atomic.Int32
	counted := func(ctx context.Context, request *Request, options ...grpc.CallOption) (*Reply, error) {
		sent.Add(1)
		return call(ctx, request, options...)
	}
	results := make(chan result, 2)
	send := func() {
		reply, _, err := retried(ctx, shared, request, counted)
		results <- result{reply, err}
	}
	go send()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for running, slower := 1, false; ; {
		select {
		case first := <-results:
			running--
			if first.err == nil {
				shared.hedges.succeeded()
				shared.p95.observe(slower, shared.timeout)
			} else if running > 0 {
				continue // the other copy may still be answered
			}
			return first.reply, int(sent.Load()), first.err
		case <-timer.C:
			slower = true
			if shared.hedges.spend() {
				running++
				go send()
			}
		}
	}
}
