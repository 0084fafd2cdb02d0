package scorer.client;

import io.grpc.Status;
import java.util.Set;

/** The error of every call. */
public final class ScorerException extends RuntimeException {
  /** The class of an error. */
  public enum Kind {
    /** The request violates a rule; the same request fails again. */
    INVALID_REQUEST,
    /** The server has no such checkpoint. */
    CHECKPOINT_NOT_FOUND,
    /** The server's state does not allow the call. */
    PRECONDITION,
    /** The id was used before with other content. */
    ID_CONFLICT,
    /** Credentials are missing or not sufficient. */
    ACCESS,
    /** The server has no such method. */
    UNSUPPORTED,
    /** No replica can be reached, or none has the bundle. */
    UNAVAILABLE,
    /** There was no answer before the deadline. */
    DEADLINE_EXCEEDED,
    /** The server rejected the request for lack of capacity. */
    OVERLOADED,
    /** Internal error of the server. */
    SERVER_FAULT,
    /** The calling thread was interrupted. */
    CANCELLED
  }

  private static final Set<Kind> UNANSWERED =
      Set.of(Kind.UNAVAILABLE, Kind.DEADLINE_EXCEEDED, Kind.OVERLOADED, Kind.SERVER_FAULT);

  private final Kind kind;
  private final String detail;
  private final String checkpoint;
  private final String requestId;
  private final int attempts;

  ScorerException(Kind kind, String detail, String checkpoint, String requestId, int attempts) {
    super(
        "%s: %s (checkpoint \"%s\", request \"%s\", attempts %d)"
            .formatted(kind, detail, checkpoint, requestId, attempts));
    this.kind = kind;
    this.detail = detail;
    this.checkpoint = checkpoint;
    this.requestId = requestId;
    this.attempts = attempts;
  }

  static ScorerException invalid(String detail, String requestId) {
    return new ScorerException(Kind.INVALID_REQUEST, detail, "", requestId, 0);
  }

  static ScorerException of(Status status, String checkpoint, String requestId, int attempts) {
    Kind kind =
        switch (status.getCode()) {
          case INVALID_ARGUMENT, OUT_OF_RANGE -> Kind.INVALID_REQUEST;
          case NOT_FOUND -> Kind.CHECKPOINT_NOT_FOUND;
          case FAILED_PRECONDITION -> Kind.PRECONDITION;
          case ALREADY_EXISTS -> Kind.ID_CONFLICT;
          case PERMISSION_DENIED, UNAUTHENTICATED -> Kind.ACCESS;
          case UNIMPLEMENTED -> Kind.UNSUPPORTED;
          case UNAVAILABLE -> Kind.UNAVAILABLE;
          case DEADLINE_EXCEEDED -> Kind.DEADLINE_EXCEEDED;
          case RESOURCE_EXHAUSTED -> Kind.OVERLOADED;
          // CANCELLED here: by the server or a proxy. An interrupted caller has no status.
          default -> Kind.SERVER_FAULT;
        };
    String detail = status.getDescription() == null ? status.getCode().name() : status.getDescription();
    return new ScorerException(kind, detail, checkpoint, requestId, attempts);
  }

  /** Returns the class of the error. */
  public Kind kind() {
    return kind;
  }

  /** Returns the message of the server or the transport. */
  public String detail() {
    return detail;
  }

  /** Returns the checkpoint of the request. */
  public String checkpoint() {
    return checkpoint;
  }

  /** Returns the id of the request. */
  public String requestId() {
    return requestId;
  }

  /** Returns how often the request was sent. */
  public int attempts() {
    return attempts;
  }

  /** Returns whether no server answered, so that a fallback applies. */
  boolean unanswered() {
    return UNANSWERED.contains(kind);
  }
}
