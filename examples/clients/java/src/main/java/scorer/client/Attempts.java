package scorer.client;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.Deadline;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import java.time.Duration;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Deadlines, retries and hedging: the state that all calls of a client share. */
final class Attempts {
  private static final Metadata.Key<String> PUSHBACK =
      Metadata.Key.of("grpc-retry-pushback-ms", Metadata.ASCII_STRING_MARSHALLER);

  private final Channel channel;
  private final ScheduledExecutorService timer;
  private final RetryPolicy policy;
  private final Duration hedge;
  private final Budget retries;
  private final Budget hedges = new Budget(10);
  private final Percentile p95;

  Attempts(
      Channel channel, ScheduledExecutorService timer, RetryPolicy policy, Duration hedge, Duration timeout) {
    this.channel = channel;
    this.timer = timer;
    this.policy = policy;
    this.retries = new Budget(policy.tokens());
    this.hedge = hedge;
    this.p95 = new Percentile(timeout.toNanos());
  }

  /** Sends a request. With `mayHedge`, a second copy is sent if there is no answer within the delay. */
  <Q, R> Exchange<Q, R> start(MethodDescriptor<Q, R> method, Q request, Duration timeout, boolean mayHedge) {
    Exchange<Q, R> exchange = new Exchange<>(method, request, timeout);
    exchange.send(1);
    if (mayHedge && hedge != null) {
      long delay = hedge.equals(RetryPolicy.HEDGE_AT_P95) ? p95.nanoseconds() : hedge.toNanos();
      later(exchange::hedge, delay)
          .ifPresent(timed -> exchange.answer.whenComplete((reply, error) -> timed.cancel(false)));
    }
    return exchange;
  }

  /** Runs a task after a delay; empty after the client was closed. */
  private Optional<Future<?>> later(Runnable task, long nanoseconds) {
    try {
      return Optional.of(timer.schedule(task, nanoseconds, TimeUnit.NANOSECONDS));
    } catch (RejectedExecutionException closed) {
      return Optional.empty();
    }
  }

  /** Returns the nanoseconds until the next attempt; empty if there is none. */
  private OptionalLong waitBeforeRetry(Status status, Metadata trailers, int attempt, Deadline deadline) {
    if (status.getCode() != Status.Code.UNAVAILABLE) {
      return OptionalLong.empty();
    }
    boolean allowed = retries.spend();
    if (!allowed || attempt >= policy.attempts()) {
      return OptionalLong.empty();
    }
    String pushback = trailers == null ? null : trailers.get(PUSHBACK);
    long wait;
    if (pushback == null) {
      long limit = Math.min(policy.cap().toNanos(), policy.base().toNanos() << (attempt - 1));
      wait = (long) (ThreadLocalRandom.current().nextDouble() * limit);
    } else if (pushback.matches("[0-9]{1,9}")) {
      wait = TimeUnit.MILLISECONDS.toNanos(Long.parseLong(pushback));
    } else {
      return OptionalLong.empty(); // By gRFC A6, a value that is no number from 0 forbids the retry.
    }
    // A wait beyond the deadline would only delay the error.
    return wait < deadline.timeRemaining(TimeUnit.NANOSECONDS) ? OptionalLong.of(wait) : OptionalLong.empty();
  }

  /** One call of the user. All copies of its request have the same bytes, id and deadline. */
  final class Exchange<Q, R> {
    final CompletableFuture<R> answer = new CompletableFuture<>();
    final AtomicInteger sent = new AtomicInteger();
    private final MethodDescriptor<Q, R> method;
    private final Q request;
    private final Deadline deadline;
    private int copies = 1;
    private boolean hedged;

    Exchange(MethodDescriptor<Q, R> method, Q request, Duration timeout) {
      this.method = method;
      this.request = request;
      this.deadline = Deadline.after(timeout.toNanos(), TimeUnit.NANOSECONDS);
    }

    private void send(int attempt) {
      if (answer.isDone()) {
        return;
      }
      sent.incrementAndGet();
      ClientCall<Q, R> call = channel.newCall(method, CallOptions.DEFAULT.withDeadline(deadline));
      ClientCalls.asyncUnaryCall(
          call,
          request,
          new StreamObserver<R>() {
            private R reply;

            @Override
            public void onNext(R message) {
              reply = message;
            }

            @Override
            public void onCompleted() {
              succeeded(reply);
            }

            @Override
            public void onError(Throwable error) {
              failed(error, attempt);
            }
          });
      // The answer to one copy, or the caller's interruption, ends the others.
      answer.whenComplete((reply, error) -> call.cancel("not needed any more", null));
    }

    private synchronized void hedge() {
      hedged = true;
      if (!answer.isDone() && hedges.spend()) {
        copies++;
        send(1);
      }
    }

    private synchronized void succeeded(R reply) {
      retries.succeeded();
      if (answer.complete(reply)) {
        hedges.succeeded();
        p95.observe(hedged);
      }
    }

    private synchronized void failed(Throwable error, int attempt) {
      if (answer.isDone()) {
        return;
      }
      Status status = Status.fromThrowable(error);
      Metadata trailers = Status.trailersFromThrowable(error);
      OptionalLong wait = waitBeforeRetry(status, trailers, attempt, deadline);
      boolean repeated =
          wait.isPresent() && later(() -> send(attempt + 1), wait.getAsLong()).isPresent();
      if (!repeated && --copies == 0) {
        answer.completeExceptionally(error);
      }
    }
  }

  /**
   * The token bucket of gRFC A6. A failure (or a hedge) takes a token, a success returns a tenth of one, and another
   * attempt needs more than half of the tokens. In the long run, at most about a tenth of the attempts are additional,
   * and none while all replicas fail.
   */
  static final class Budget {
    private final double most;
    private double tokens;

    Budget(double tokens) {
      this.most = tokens;
      this.tokens = tokens;
    }

    synchronized void succeeded() {
      tokens = Math.min(most, tokens + 0.1);
    }

    /** Takes a token, and returns whether another attempt is allowed. */
    synchronized boolean spend() {
      tokens = Math.max(0, tokens - 1);
      return tokens > most / 2;
    }
  }

  /**
   * Follows the 95th percentile of a duration: a slower sample raises the estimate by 10 %, a faster one lowers it by
   * 0.5 %, which is in balance where 5 % of the samples are slower.
   */
  static final class Percentile {
    private final double most;
    private double estimate;

    Percentile(long mostNanoseconds) {
      most = mostNanoseconds;
      estimate = most / 2;
    }

    synchronized void observe(boolean slower) {
      estimate = Math.min(Math.max(estimate * (slower ? 1.1 : 0.995), 1e6), most);
    }

    synchronized long nanoseconds() {
      return (long) estimate;
    }
  }
}
