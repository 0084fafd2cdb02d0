package scorer.client;

import java.time.Duration;

/**
 * Bounds the attempts after one that ended with UNAVAILABLE, the only status that is repeated. The wait before
 * repetition n (from 0) is drawn uniformly from [0, min(cap, base * 2^n)].
 *
 * @param attempts most attempts of one call, 1 to 5; 1 turns retries off
 * @param base upper limit of the first wait
 * @param cap upper limit of every wait
 * @param tokens size of the budget; half of them are the retries that are allowed at once
 */
public record RetryPolicy(int attempts, Duration base, Duration cap, double tokens) {
  /** Three attempts, waits of up to 10 ms and 20 ms, 50 retries at once. */
  public static final RetryPolicy DEFAULT =
      new RetryPolicy(3, Duration.ofMillis(10), Duration.ofMillis(100), 100);

  /** As `Options.hedge`: the 95th percentile of the time that recent scores took. */
  public static final Duration HEDGE_AT_P95 = Duration.ofNanos(-1);

  /** Checks the values. */
  public RetryPolicy {
    if (attempts < 1 || attempts > 5) {
      throw new IllegalArgumentException("attempts must be 1 to 5, not " + attempts);
    }
    if (!(tokens > 0)) {
      throw new IllegalArgumentException("tokens must be a number above 0, not " + tokens);
    }
  }
}
