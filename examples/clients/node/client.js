/**
 * A client of the scorer server for checkout services.
 *
 *     const client = new ScorerClient({ addresses: ["10.0.0.1:7700", "10.0.0.2:7700"] });
 *     const answer = await client.selectAction({
 *       checkpoint: "action.authorise", requestId: requestId("4711", 1), features: { amount: 129.9 },
 *     });
 *     await client.reportOutcome({ decision: answer.decision, kind: "authorised", value: 1 });
 *
 * attempts.js has deadlines, retries and hedging, replicas.js the connections, and errors.js the errors.
 */
import { Attempts } from "./attempts.js";
import { ScorerError, invalid } from "./errors.js";
import { connect } from "./replicas.js";

/**
 * Identifies a decision in outcomes. Store it with the payment.
 * @typedef {object} Decision
 * @property {string} checkpoint
 * @property {string} id Empty if the client's own fallback answered.
 * @property {Buffer} token Proves outcomes at every replica; empty if the servers sign none.
 */

/**
 * How an answer was produced.
 * @typedef {object} Origin
 * @property {"model"|"server_fallback"|"client_fallback"} source What answered: the model, the server without the
 *   model, or the fallback of the request, because no server answered.
 * @property {string} fallback Name of the fallback, such as "static" or "client"; empty: the model answered.
 * @property {string} reason Reason of the fallback, such as "overload"; empty: the model answered.
 * @property {string} bundle Digest of the bundle that answered.
 * @property {boolean} logged Whether the decision is recorded as its checkpoint requires.
 * @property {number} attempts How often the request was sent, hedges included.
 */

/** @typedef {Record<string, number|string|boolean|null>} Features Values by name; null: missing. */

/**
 * Returns the request id of one attempt to pay: the same payment and attempt always have the same id, so that a
 * repeated call, also after a restart of the caller, is the same request. The payment must not be a card number,
 * because request ids appear in logs.
 * @param {string} payment
 * @param {number} attempt
 */
export function requestId(payment, attempt) {
  return checked(`${payment}-attempt-${attempt}`);
}

/** Calls the replicas of a server. Create one per process and keep it. */
export class ScorerClient {
  #stub;
  #attempts;
  #timeoutMs;

  /**
   * The first call opens the connections.
   * @param {object} options
   * @param {string[]} options.addresses IP addresses of replicas with ports, or one "name:port" for all of them.
   * @param {{ca: string, certificate?: string, key?: string, serverName?: string}} [options.tls] PEM files, read
   *   once, and the name in the servers' certificates (default: the host of the first address).
   * @param {number} [options.timeoutMs] Time limit of a call whose request has none.
   * @param {{attempts?: number, baseMs?: number, capMs?: number, tokens?: number}} [options.retry] See attempts.js.
   * @param {number|"p95"} [options.hedge] Delay in milliseconds after which a score without an answer is requested a
   *   second time, or "p95" for the 95th percentile of the time that recent scores took; default: never.
   * @param {string} [options.protos] The directory that contains scorer/v1.
   */
  constructor({ addresses, tls, timeoutMs = 250, retry = {}, hedge, protos }) {
    this.#stub = connect(addresses, tls, protos);
    this.#timeoutMs = timeoutMs;
    this.#attempts = new Attempts({ retry, hedge, timeoutMs });
  }

  /**
   * Returns the score of one event. It may be hedged: a score has no effect beyond its record, and the token in the
   * answer names the record that counts.
   * @param {object} request
   * @param {string} request.checkpoint A checkpoint of kind "score".
   * @param {string} request.requestId See `requestId`.
   * @param {Features} request.features
   * @param {string} [request.entity] Key that assigns requests to lanes, such as a shopper token.
   * @param {number} [request.timeoutMs]
   * @param {{label: string, score: number}} [request.fallback] Answer if no server answers in time.
   * @returns {Promise<{decision: Decision, score: number, label: string, origin: Origin}>}
   */
  async score({ checkpoint, requestId: id, features, entity = "", timeoutMs, fallback }) {
    const message = {
      checkpoint, requestId: checked(id), named: named(id, features), entity, includeToken: true,
    };
    try {
      const { reply, sent } = await this.#send("score", message, id, timeoutMs, true);
      return {
        decision: { checkpoint, id: reply.decisionId, token: reply.decisionToken },
        score: reply.score,
        label: reply.decision,
        origin: origin(reply, sent),
      };
    } catch (error) {
      if (!fallback || !error.unanswered) throw error;
      return { decision: none(checkpoint), ...fallback, origin: fallbackOrigin(error) };
    }
  }

  /**
   * Returns the action that the policy drew. It is retried but never hedged; see the README.
   * @param {object} request
   * @param {string} request.checkpoint A checkpoint of kind "action".
   * @param {string} request.requestId See `requestId`.
   * @param {Features} request.features
   * @param {string} [request.entity]
   * @param {string[]} [request.eligible] Ids of the actions to choose from; default: all.
   * @param {number} [request.timeoutMs]
   * @param {string} [request.fallback] Action to return if no server answers in time.
   * @returns {Promise<{decision: Decision, action: string, propensity: number, factors: Record<string, string>,
   *   replayed: boolean, origin: Origin}>} `replayed`: the server repeated its earlier answer to this request id.
   */
  async selectAction({ checkpoint, requestId: id, features, entity = "", eligible, timeoutMs, fallback }) {
    const message = { checkpoint, requestId: checked(id), named: named(id, features), entity };
    if (eligible) message.eligible = { ids: eligible };
    try {
      const { reply, sent } = await this.#send("selectAction", message, id, timeoutMs, false);
      return {
        decision: { checkpoint, id: reply.decisionId, token: reply.decisionToken },
        action: reply.action,
        propensity: reply.propensity,
        factors: reply.factors,
        replayed: reply.replayed,
        origin: origin(reply, sent),
      };
    } catch (error) {
      if (!fallback || !error.unanswered) throw error;
      return {
        decision: none(checkpoint), action: fallback, propensity: 1, factors: {}, replayed: false,
        origin: fallbackOrigin(error),
      };
    }
  }

  /**
   * Reports what became known about a decision, with the decision's token. A repeated report has no further effect;
   * another value needs a higher revision.
   * @param {object} outcome
   * @param {Decision} outcome.decision
   * @param {string} outcome.kind Such as "authorised" or "chargeback".
   * @param {number} outcome.value
   * @param {number} [outcome.revision]
   * @param {{kind: "reviewer" | "merchant" | "issuer" | "scheme", id?: string}} [outcome.source] Who or what reports it,
   *   and a short id, such as the name of a feed.
   * @param {number} [outcome.timeoutMs]
   * @returns {Promise<{duplicate: boolean, decisionKnown: boolean, superseded: boolean, proven: boolean,
   *   attempts: number}>} `decisionKnown` is false at a replica that did not make the decision, which is no error;
   *   `proven`: the token proved the outcome, so that it is used for training.
   */
  async reportOutcome({ decision, kind, value, revision = 0, source, timeoutMs }) {
    if (!decision.id) {
      throw invalid("the decision has no id, because the client's fallback answered; report no outcome for it");
    }
    const { checkpoint, id, token } = decision;
    const message = { checkpoint, decisionId: id, decisionToken: token, kind, value, revision };
    if (source) {
      if (!SOURCES.has(source.kind)) {
        throw invalid(`source "${source.kind}" is none of ${[...SOURCES].join(", ")}`);
      }
      message.source = { kind: `OUTCOME_SOURCE_KIND_${source.kind.toUpperCase()}`, id: source.id ?? "" };
    }
    const { reply, sent } = await this.#send("reportOutcome", message, id, timeoutMs, false);
    const { duplicate, decisionKnown, superseded, proven } = reply;
    return { duplicate, decisionKnown, superseded, proven, attempts: sent };
  }

  /** Closes the connections. */
  close() {
    this.#stub.close();
  }

  async #send(method, message, id, timeoutMs, mayHedge) {
    const send = this.#stub[method].bind(this.#stub, message);
    const exchange = this.#attempts.start(send, timeoutMs ?? this.#timeoutMs, mayHedge);
    try {
      return { reply: await exchange.answer, sent: exchange.sent };
    } catch (error) {
      throw ScorerError.of(error, message.checkpoint, id, exchange.sent);
    }
  }
}

function none(checkpoint) {
  return { checkpoint, id: "", token: Buffer.alloc(0) };
}

function origin({ served, logged }, attempts) {
  const { fallbackSource = "", fallbackReason = "", bundle = "" } = served ?? {};
  const source = fallbackSource ? "server_fallback" : "model";
  return { source, fallback: fallbackSource, reason: fallbackReason, bundle, logged, attempts };
}

function fallbackOrigin({ kind, attempts }) {
  const source = "client_fallback";
  return { source, fallback: "client", reason: kind.toLowerCase(), bundle: "", logged: false, attempts };
}

function checked(id) {
  if (typeof id !== "string" || !/^[ -~]{1,64}$/.test(id)) {
    throw invalid("a request id is 1 to 64 printable ASCII characters", id);
  }
  return id;
}

const SOURCES = new Set(["reviewer", "merchant", "issuer", "scheme"]);
const FIELDS = { number: "number", string: "category", boolean: "flag" };

function named(id, features) {
  return {
    features: Object.entries(features).map(([name, value]) => {
      if (value === null || value === undefined) return { name };
      const field = FIELDS[typeof value];
      if (!field) {
        const rule = "pass a number, a string, a boolean or null";
        throw invalid(`feature "${name}" is of type ${typeof value}; ${rule}`, id);
      }
      return { name, [field]: value };
    }),
  };
}
