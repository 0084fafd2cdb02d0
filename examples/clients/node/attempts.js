import { Metadata, status } from "@grpc/grpc-js";

/** Deadlines, retries and hedging: the state that all calls of a client share. */
export class Attempts {
  #policy;
  #hedge;
  #retries;
  #hedges = new Budget(10);
  #p95;

  /**
   * UNAVAILABLE is the only status that is repeated. The wait before repetition n (from 0) is drawn uniformly from
   * [0, min(capMs, baseMs * 2^n)].
   * @param {object} options
   * @param {{attempts?: number, baseMs?: number, capMs?: number, tokens?: number}} options.retry Most attempts of one
   *   call (1: no retries), limits of the waits between them, and size of the budget; half of its tokens are the
   *   retries that are allowed at once.
   * @param {number|"p95"|undefined} options.hedge
   * @param {number} options.timeoutMs
   */
  constructor({ retry, hedge, timeoutMs }) {
    this.#policy = { attempts: 3, baseMs: 10, capMs: 100, tokens: 100, ...retry };
    this.#retries = new Budget(this.#policy.tokens);
    this.#hedge = hedge;
    this.#p95 = new Percentile(timeoutMs);
  }

  /**
   * Sends a request. All copies have the same bytes, and so the same request id, and the same deadline.
   * @param {(metadata: Metadata, options: object, done: Function) => {cancel(): void}} send Sends one copy.
   * @param {number} timeoutMs
   * @param {boolean} mayHedge Whether a second copy is sent if there is no answer within the delay.
   * @returns {{answer: Promise<object>, sent: number}} The first answer, and how often the request was sent.
   */
  start(send, timeoutMs, mayHedge) {
    const deadline = Date.now() + timeoutMs;
    const open = new Set();
    const exchange = { answer: null, sent: 0 };
    let copies = 1;
    let hedged = false;
    let done = false;
    let timer;
    exchange.answer = new Promise((resolve, reject) => {
      const finish = (settle, value) => {
        done = true;
        clearTimeout(timer);
        settle(value);
        open.forEach((call) => call.cancel()); // the answer to one copy ends the others
      };
      const attempt = (number) => {
        if (done) return;
        exchange.sent += 1;
        const answered = (error, reply) => {
          open.delete(call);
          if (!error) this.#retries.succeeded();
          if (done) return;
          if (!error) {
            this.#hedges.succeeded();
            this.#p95.observe(hedged);
            finish(resolve, reply);
            return;
          }
          const wait = this.#waitBeforeRetry(error, number, deadline);
          if (wait !== null) setTimeout(attempt, wait, number + 1);
          else if (--copies === 0) finish(reject, error);
        };
        let call;
        try {
          call = send(new Metadata(), { deadline }, answered);
        } catch (error) {
          finish(reject, error); // the client was closed
          return;
        }
        open.add(call);
      };
      attempt(1);
      if (mayHedge && this.#hedge !== undefined) {
        timer = setTimeout(() => {
          hedged = true;
          if (this.#hedges.spend()) {
            copies += 1;
            attempt(1);
          }
        }, this.#hedge === "p95" ? this.#p95.ms : this.#hedge);
      }
    });
    return exchange;
  }

  /** Returns the milliseconds until the next attempt; null: there is none. */
  #waitBeforeRetry(error, number, deadline) {
    if (error.code !== status.UNAVAILABLE) return null;
    const allowed = this.#retries.spend();
    if (!allowed || number >= this.#policy.attempts) return null;
    const [pushback] = error.metadata?.get("grpc-retry-pushback-ms") ?? [];
    let wait = Math.random() * Math.min(this.#policy.capMs, this.#policy.baseMs * 2 ** (number - 1));
    if (pushback !== undefined) {
      // By gRFC A6, a value that is no number from 0 forbids the retry.
      if (!/^[0-9]{1,9}$/.test(pushback)) return null;
      wait = Number(pushback);
    }
    // A wait beyond the deadline would only delay the error.
    return Date.now() + wait < deadline ? wait : null;
  }
}

/**
 * The token bucket of gRFC A6. A failure (or a hedge) takes a token, a success returns a tenth of one, and another
 * attempt needs more than half of the tokens. In the long run, at most about a tenth of the attempts are additional,
 * and none while all replicas fail.
 */
class Budget {
  #most;
  #tokens;

  constructor(tokens) {
    this.#most = tokens;
    this.#tokens = tokens;
  }

  succeeded() {
    this.#tokens = Math.min(this.#most, this.#tokens + 0.1);
  }

  /** Takes a token, and returns whether another attempt is allowed. */
  spend() {
    this.#tokens = Math.max(0, this.#tokens - 1);
    return this.#tokens > this.#most / 2;
  }
}

/**
 * Follows the 95th percentile of a duration: a slower sample raises the estimate by 10 %, a faster one lowers it by
 * 0.5 %, which is in balance where 5 % of the samples are slower.
 */
class Percentile {
  #most;

  constructor(mostMs) {
    this.#most = mostMs;
    this.ms = mostMs / 2;
  }

  observe(slower) {
    this.ms = Math.min(Math.max(this.ms * (slower ? 1.1 : 0.995), 1), this.#most);
  }
}
