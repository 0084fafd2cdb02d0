/**
 * Reads the steps of payments from the standard input, one per line, and prints each answer as a line of name=value
 * fields, separated by tabs.
 *
 *     score CHECKPOINT PAYMENT ATTEMPT feature=value ...
 *     select CHECKPOINT PAYMENT ATTEMPT [eligible:ACTION,ACTION] feature=value ...
 *     outcome CHECKPOINT PAYMENT ATTEMPT KIND VALUE [REVISION [SOURCE:ID]]
 */
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";

import { ScorerClient, requestId } from "./client.js";

const text = (value) => ({ type: "string", default: value });
const { values: given } = parseArgs({
  options: {
    addresses: text("127.0.0.1:7700"), // replicas, separated by commas
    ca: text(""), // PEM file with the authorities of the servers; empty: no TLS
    certificate: text(""),
    key: text(""),
    "server-name": text(""),
    "timeout-ms": text("250"),
    attempts: text(""), // most attempts of a call; empty: the client's default
    hedge: text("off"), // off, p95 or milliseconds
    concurrency: text("1"), // number of steps that run at the same time
    "fallback-label": text(""), // label of a score that no server answers
    "fallback-action": text(""), // action that is returned if no server answers
  },
});
const hedges = { off: undefined, p95: "p95" };
const client = new ScorerClient({
  addresses: given.addresses.split(","),
  tls: given.ca
    ? { ca: given.ca, certificate: given.certificate, key: given.key, serverName: given["server-name"] }
    : undefined,
  timeoutMs: Number(given["timeout-ms"]),
  retry: given.attempts ? { attempts: Number(given.attempts) } : {},
  hedge: given.hedge in hedges ? hedges[given.hedge] : Number(given.hedge),
});
const decisions = new Map(); // by checkpoint and request id; a shop stores decisions with its payments

/** Reads name=value words: numbers, true and false, and categories. */
function features(words) {
  const found = {};
  for (const word of words.filter((each) => !each.startsWith("eligible:"))) {
    const name = word.split("=", 1)[0];
    const value = word.slice(name.length + 1);
    if (/^-?\d+(\.\d+)?$/.test(value)) found[name] = Number(value);
    else if (value === "true" || value === "false") found[name] = value === "true";
    else found[name] = value;
  }
  return found;
}

const calls = {
  async score(checkpoint, id, rest) {
    const label = given["fallback-label"];
    const { decision, origin, ...answer } = await client.score({
      checkpoint, requestId: id, features: features(rest), fallback: label ? { label, score: 0.5 } : undefined,
    });
    decisions.set(`${checkpoint} ${id}`, decision);
    return { ...answer, ...origin, token: decision.token.length };
  },
  async select(checkpoint, id, rest) {
    const listed = rest[0]?.startsWith("eligible:") ? rest[0].slice("eligible:".length).split(",") : undefined;
    const { decision, origin, factors, ...answer } = await client.selectAction({
      checkpoint, requestId: id, features: features(rest), eligible: listed, fallback: given["fallback-action"],
    });
    decisions.set(`${checkpoint} ${id}`, decision);
    return { ...answer, ...origin, token: decision.token.length };
  },
  async outcome(checkpoint, id, [kind, value, revision = "0", by]) {
    const decision = decisions.get(`${checkpoint} ${id}`) ?? { checkpoint, id: "" };
    const [sourceKind, sourceId = ""] = by?.split(":") ?? [];
    const source = by ? { kind: sourceKind, id: sourceId } : undefined;
    const report = await client.reportOutcome({
      decision, kind, value: Number(value), revision: Number(revision), source,
    });
    const { duplicate, decisionKnown: known, proven, attempts } = report;
    return { duplicate, known, proven, attempts };
  },
};

/** Runs one line and prints its answer or its error. */
async function run(line) {
  const [step, checkpoint, payment, attempt, ...rest] = line.trim().split(/\s+/);
  const fields = { step, id: `${payment}-attempt-${attempt}` };
  try {
    if (!Object.hasOwn(calls, step)) throw new RangeError(`step ${step} is none of score, select, outcome`);
    Object.assign(fields, await calls[step](checkpoint, requestId(payment, Number(attempt)), rest));
  } catch (error) {
    const { kind = "INVALID_REQUEST", attempts = 0, detail = error.message } = error;
    Object.assign(fields, { error: kind, attempts, message: detail });
  }
  console.log(Object.entries(fields).map(([name, value]) => `${name}=${value}`).join("\t"));
}

const running = new Set();
for await (const line of createInterface({ input: process.stdin })) {
  while (running.size >= Number(given.concurrency)) await Promise.race(running);
  const step = run(line).finally(() => running.delete(step));
  running.add(step);
}
await Promise.all(running);
client.close();
