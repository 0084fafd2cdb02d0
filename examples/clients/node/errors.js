import { status } from "@grpc/grpc-js";

const KINDS = {
  [status.INVALID_ARGUMENT]: "INVALID_REQUEST", // the request violates a rule; it fails again
  [status.OUT_OF_RANGE]: "INVALID_REQUEST",
  [status.NOT_FOUND]: "CHECKPOINT_NOT_FOUND", // the server has no such checkpoint
  [status.FAILED_PRECONDITION]: "PRECONDITION", // the server's state does not allow the call
  [status.ALREADY_EXISTS]: "ID_CONFLICT", // the id was used before with other content
  [status.PERMISSION_DENIED]: "ACCESS", // credentials are missing or not sufficient
  [status.UNAUTHENTICATED]: "ACCESS",
  [status.UNIMPLEMENTED]: "UNSUPPORTED", // the server has no such method
  [status.UNAVAILABLE]: "UNAVAILABLE", // no replica can be reached, or none has the bundle
  [status.DEADLINE_EXCEEDED]: "DEADLINE_EXCEEDED", // no answer before the deadline
  [status.RESOURCE_EXHAUSTED]: "OVERLOADED", // the server rejected the request for lack of capacity
};
const UNANSWERED = new Set(["UNAVAILABLE", "DEADLINE_EXCEEDED", "OVERLOADED", "SERVER_FAULT"]);

/** The error of every call. */
export class ScorerError extends Error {
  /**
   * @param {string} kind Class of the error: one of the values of KINDS, or SERVER_FAULT.
   * @param {string} detail Message of the server or the transport.
   * @param {string} checkpoint
   * @param {string} requestId
   * @param {number} attempts How often the request was sent.
   */
  constructor(kind, detail, checkpoint, requestId, attempts) {
    super(`${kind}: ${detail} (checkpoint "${checkpoint}", request "${requestId}", attempts ${attempts})`);
    Object.assign(this, { name: "ScorerError", kind, detail, checkpoint, requestId, attempts });
  }

  /** Whether no server answered, so that a fallback applies. */
  get unanswered() {
    return UNANSWERED.has(this.kind);
  }

  static of(error, checkpoint, requestId, attempts) {
    if (error.code === undefined) throw error; // a defect, not the status of a call
    const kind = KINDS[error.code] ?? "SERVER_FAULT";
    return new ScorerError(kind, error.details || error.message, checkpoint, requestId, attempts);
  }
}

/** Returns the error of a request that is not sent, because it violates a rule. */
export function invalid(detail, requestId = "") {
  return new ScorerError("INVALID_REQUEST", detail, "", requestId, 0);
}
