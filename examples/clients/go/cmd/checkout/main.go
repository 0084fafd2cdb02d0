// Command checkout reads the steps of payments from the standard input, one per line, and prints each answer as a
// line of name=value fields, separated by tabs.
//
//	score CHECKPOINT PAYMENT ATTEMPT feature=value ...
//	select CHECKPOINT PAYMENT ATTEMPT [eligible:ACTION,ACTION] feature=value ...
//	outcome CHECKPOINT PAYMENT ATTEMPT KIND VALUE [REVISION [SOURCE:ID]]
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	scorer "scorer/examples/clients/go"
)

type checkout struct {
	client    *scorer.Client
	label     string
	action    string
	decisions sync.Map // scorer.Decision by checkpoint and request id; a shop stores them with its payments
	printing  sync.Mutex
}

func main() {
	addresses := flag.String("addresses", "127.0.0.1:7700", "Replicas, separated by commas.")
	ca := flag.String("ca", "", "PEM file with the authorities of the servers; empty: no TLS.")
	certificate := flag.String("certificate", "", "PEM file with the certificate of this client.")
	key := flag.String("key", "", "PEM file with the key of the certificate.")
	serverName := flag.String("server-name", "", "Name in the servers' certificates.")
	timeout := flag.Int("timeout-ms", 250, "Deadline of a call in milliseconds.")
	attempts := flag.Int("attempts", 0, "Most attempts of a call; 0: the client's default.")
	hedge := flag.String("hedge", "off", "Delay of a second request for a score: off, p95 or milliseconds.")
	concurrency := flag.Int("concurrency", 1, "Number of steps that run at the same time.")
	label := flag.String("fallback-label", "", "Label of a score that no server answers; empty: an error.")
	action := flag.String("fallback-action", "", "Action that is returned if no server answers; empty: an error.")
	flag.Parse()

	options := scorer.Options{
		Addresses: strings.Split(*addresses, ","),
		Timeout:   time.Duration(*timeout) * time.Millisecond,
		Retry:     scorer.RetryPolicy{Attempts: *attempts},
	}
	if *ca != "" {
		options.TLS = &scorer.TLSFiles{CA: *ca, Certificate: *certificate, Key: *key, ServerName: *serverName}
	}
	switch *hedge {
	case "off":
	case "p95":
		options.Hedge = scorer.HedgeAtP95
	default:
		milliseconds, err := strconv.Atoi(*hedge)
		if err != nil || milliseconds <= 0 {
			fail(fmt.Errorf("-hedge %q is neither off nor p95 nor a number of milliseconds above 0", *hedge))
		}
		options.Hedge = time.Duration(milliseconds) * time.Millisecond
	}
	client, err := scorer.New(options)
	if err != nil {
		fail(err)
	}
	defer client.Close()
	program := &checkout{client: client, label: *label, action: *action}
	places := make(chan struct{}, max(1, *concurrency))
	var running sync.WaitGroup
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		places <- struct{}{}
		running.Go(func() {
			program.step(words)
			<-places
		})
	}
	running.Wait()
	if err := lines.Err(); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}

// step runs one line and prints its answer or its error.
func (p *checkout) step(words []string) {
	if len(words) < 4 {
		p.print("step="+strings.Join(words, " "), "error=INVALID_REQUEST", "message=a line has at least four words")
		return
	}
	attempt, _ := strconv.Atoi(words[3])
	id, err := scorer.RequestID(words[2], attempt)
	fields := []string{"step=" + words[0], "id=" + id}
	if err == nil {
		var answer []string
		answer, err = p.call(words[0], words[1], id, words[4:])
		fields = append(fields, answer...)
	}
	var failed *scorer.Error
	switch {
	case errors.As(err, &failed):
		fields = append(fields,
			"error="+string(failed.Kind), "attempts="+strconv.Itoa(failed.Attempts), "message="+failed.Message)
	case err != nil:
		fields = append(fields, "error="+string(scorer.InvalidRequest), "message="+err.Error())
	}
	p.print(fields...)
}

func (p *checkout) call(step, checkpoint, id string, rest []string) ([]string, error) {
	ctx := context.Background() // no deadline of its own: that of the client applies
	switch step {
	case "score":
		request := scorer.ScoreRequest{Checkpoint: checkpoint, RequestID: id, Features: features(rest)}
		if p.label != "" {
			request.Fallback = &scorer.ScoreFallback{Label: p.label, Score: 0.5}
		}
		answer, err := p.client.Score(ctx, request)
		if err != nil {
			return nil, err
		}
		p.decisions.Store(checkpoint+" "+id, answer.Decision)
		fields := []string{fmt.Sprintf("score=%v", answer.Score), "label=" + answer.Label}
		return append(fields, origin(answer.Origin, answer.Decision)...), nil
	case "select":
		request := scorer.ActionRequest{
			Checkpoint: checkpoint, RequestID: id, Features: features(rest), Fallback: p.action,
		}
		if len(rest) > 0 && strings.HasPrefix(rest[0], "eligible:") {
			request.Eligible = strings.Split(strings.TrimPrefix(rest[0], "eligible:"), ",")
		}
		answer, err := p.client.SelectAction(ctx, request)
		if err != nil {
			return nil, err
		}
		p.decisions.Store(checkpoint+" "+id, answer.Decision)
		fields := []string{
			"action=" + answer.Action, fmt.Sprintf("propensity=%v", answer.Propensity),
			fmt.Sprintf("replayed=%v", answer.Replayed),
		}
		return append(fields, origin(answer.Origin, answer.Decision)...), nil
	case "outcome":
		if len(rest) < 2 {
			return nil, errors.New("an outcome has a kind and a value")
		}
		value, err := strconv.ParseFloat(rest[1], 64)
		if err != nil {
			return nil, err
		}
		var revision uint64
		if len(rest) > 2 {
			if revision, err = strconv.ParseUint(rest[2], 10, 32); err != nil {
				return nil, err
			}
		}
		decision := scorer.Decision{Checkpoint: checkpoint}
		if stored, known := p.decisions.Load(checkpoint + " " + id); known {
			decision = stored.(scorer.Decision)
		}
		var reporters []scorer.Reporter
		if len(rest) > 3 {
			kind, id, _ := strings.Cut(rest[3], ":")
			reporters = append(reporters, scorer.Reporter{Kind: kind, ID: id})
		}
		report, err := p.client.ReportOutcome(ctx, decision, rest[0], value, uint32(revision), reporters...)
		if err != nil {
			return nil, err
		}
		return []string{
			fmt.Sprintf("duplicate=%v", report.Duplicate), fmt.Sprintf("known=%v", report.DecisionKnown),
			fmt.Sprintf("proven=%v", report.Proven), fmt.Sprintf("attempts=%d", report.Attempts),
		}, nil
	}
	return nil, fmt.Errorf("step %q is none of score, select, outcome", step)
}

// features reads name=value words: numbers, true and false, and categories.
func features(words []string) scorer.Features {
	found := scorer.Features{}
	for _, word := range words {
		name, text, _ := strings.Cut(word, "=")
		if strings.HasPrefix(word, "eligible:") {
			continue
		}
		if number, err := strconv.ParseFloat(text, 64); err == nil {
			found[name] = number
		} else if text == "true" || text == "false" {
			found[name] = text == "true"
		} else {
			found[name] = text
		}
	}
	return found
}

func origin(from scorer.Origin, decision scorer.Decision) []string {
	return []string{
		"source=" + string(from.Source), "fallback=" + from.Fallback, "reason=" + from.Reason,
		"bundle=" + from.Bundle, fmt.Sprintf("logged=%v", from.Logged),
		"attempts=" + strconv.Itoa(from.Attempts), "token=" + strconv.Itoa(len(decision.Token)),
	}
}

func (p *checkout) print(fields ...string) {
	p.printing.Lock()
	defer p.printing.Unlock()
	fmt.Println(strings.Join(fields, "\t"))
}
