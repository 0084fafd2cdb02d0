package scorer.client;

import com.google.protobuf.ByteString;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.function.BiFunction;
import scorer.client.ScorerException.Kind;
import scorer.v1.Scoring;
import scorer.v1.ScoringServiceGrpc;

/**
 * A client of the scorer server for checkout services. It may be used by several threads; create one per process.
 *
 * <pre>{@code
 * var client = new ScorerClient(new ScorerClient.Options(List.of("10.0.0.1:7700", "10.0.0.2:7700")));
 * var id = ScorerClient.requestId("4711", 1);
 * var answer = client.selectAction(
 *     new ScorerClient.ActionRequest("action.authorise", id, Map.of("amount", 129.9)));
 * client.reportOutcome(answer.decision(), "authorised", 1.0, 0);
 * }</pre>
 *
 * <p>Every call throws {@link ScorerException}. {@link Attempts} has deadlines, retries and hedging, and {@link
 * Replicas} the connections.
 */
public final class ScorerClient implements AutoCloseable {
  /** Settings of a client. */
  public static final class Options {
    /** The replicas, each as "host:port". A single name may stand for several replicas. */
    public final List<String> addresses;

    /** The files for TLS; null: the connections are not encrypted. */
    public Tls tls;

    /** Time limit of a call whose request has none. */
    public Duration timeout = Duration.ofMillis(250);

    /** When and how often failed attempts are repeated. */
    public RetryPolicy retry = RetryPolicy.DEFAULT;

    /**
     * Delay after which a score without an answer is requested a second time; null: never, {@link
     * RetryPolicy#HEDGE_AT_P95}: the 95th percentile of the time that recent scores took.
     */
    public Duration hedge;

    /** Creates settings with defaults. */
    public Options(List<String> addresses) {
      this.addresses = List.copyOf(addresses);
    }
  }

  /**
   * The PEM files of a connection. They are read again within a minute after both have been replaced.
   *
   * @param ca authorities of the servers
   * @param certificate certificate of this client; null: none
   * @param key key of the certificate; null: none
   * @param serverName name in the servers' certificates; null: the host of each address
   */
  public record Tls(Path ca, Path certificate, Path key, String serverName) {}

  /**
   * Identifies a decision in outcomes. Store it with the payment.
   *
   * @param id empty if the client's own fallback answered
   * @param token proves outcomes at every replica; empty if the servers sign none
   */
  public record Decision(String checkpoint, String id, byte[] token) {}

  /** What produced an answer. */
  public enum Source {
    /** The model and its policy. */
    MODEL,
    /** The server answered without the model. */
    SERVER_FALLBACK,
    /** No server answered, and the request had a fallback. */
    CLIENT_FALLBACK
  }

  /**
   * How an answer was produced.
   *
   * @param fallback name of the fallback, such as "static" or "client"; empty: the model answered
   * @param reason reason of the fallback, such as "overload"; empty: the model answered
   * @param bundle digest of the bundle that answered
   * @param logged whether the decision is recorded as its checkpoint requires
   * @param attempts how often the request was sent, hedges included
   */
  public record Origin(
      Source source, String fallback, String reason, String bundle, boolean logged, int attempts) {}

  /**
   * Asks for a score at a checkpoint of kind "score".
   *
   * @param requestId see {@link #requestId}
   * @param features values by name: a Number, a String (category), a Boolean (flag), or null (missing)
   * @param entity key that assigns requests to lanes, such as a shopper token
   * @param timeout deadline of this call; null: that of the client
   * @param fallback answer if no server answers in time; null: an error
   */
  public record ScoreRequest(
      String checkpoint,
      String requestId,
      Map<String, ?> features,
      String entity,
      Duration timeout,
      ScoreFallback fallback) {
    /** Creates a request with the defaults of entity, timeout and fallback. */
    public ScoreRequest(String checkpoint, String requestId, Map<String, ?> features) {
      this(checkpoint, requestId, features, "", null, null);
    }
  }

  /** The answer of a score without a server. */
  public record ScoreFallback(String label, double score) {}

  /**
   * A score.
   *
   * @param score calibrated probability
   * @param label label of the threshold band, such as "approve"
   */
  public record Score(Decision decision, double score, String label, Origin origin) {}

  /**
   * Asks for an action at a checkpoint of kind "action"; see {@link ScoreRequest}.
   *
   * @param eligible ids of the actions to choose from; null: all
   * @param fallback action to return if no server answers in time; null: an error
   */
  public record ActionRequest(
      String checkpoint,
      String requestId,
      Map<String, ?> features,
      String entity,
      List<String> eligible,
      Duration timeout,
      String fallback) {
    /** Creates a request with the defaults of the other values. */
    public ActionRequest(String checkpoint, String requestId, Map<String, ?> features) {
      this(checkpoint, requestId, features, "", null, null, null);
    }
  }

  /**
   * A selected action.
   *
   * @param propensity probability with which the action was drawn
   * @param factors parts of the action, such as three_ds
   * @param replayed whether the server repeated its earlier answer to this request id
   */
  public record Action(
      Decision decision,
      String action,
      double propensity,
      Map<String, String> factors,
      boolean replayed,
      Origin origin) {}

  /**
   * The answer to an outcome.
   *
   * @param duplicate the same outcome was reported before
   * @param decisionKnown this replica made the decision; false is no error
   * @param superseded a higher revision is recorded
   * @param proven the token proved the outcome, so that it is used for training
   */
  public record Report(
      boolean duplicate, boolean decisionKnown, boolean superseded, boolean proven, int attempts) {}

  private final ManagedChannel channel;
  private final ScheduledExecutorService timer;
  private final Attempts attempts;
  private final Duration timeout;

  /** Creates a client. The first call opens the connections. */
  public ScorerClient(Options options) {
    timer =
        Executors.newSingleThreadScheduledExecutor(
            task -> {
              Thread thread = new Thread(task, "scorer-client");
              thread.setDaemon(true);
              return thread;
            });
    channel = Replicas.connect(options.addresses, options.tls, timer);
    timeout = options.timeout;
    attempts = new Attempts(channel, timer, options.retry, options.hedge, timeout);
  }

  /**
   * Returns the request id of one attempt to pay: the same payment and attempt always have the same id, so that a
   * repeated call, also after a restart of the caller, is the same request. The payment must not be a card number,
   * because request ids appear in logs.
   */
  public static String requestId(String payment, int attempt) {
    return checked(payment + "-attempt-" + attempt);
  }

  /**
   * Returns the score of one event. It may be hedged: a score has no effect beyond its record, and the token in the
   * answer names the record that counts.
   */
  public Score score(ScoreRequest request) {
    Scoring.ScoreRequest message =
        Scoring.ScoreRequest.newBuilder()
            .setCheckpoint(request.checkpoint())
            .setRequestId(checked(request.requestId()))
            .setNamed(named(request.requestId(), request.features()))
            .setEntity(request.entity())
            .setIncludeToken(true)
            .build();
    var call = new Call(request.checkpoint(), request.requestId(), request.timeout(), true);
    try {
      return send(
          ScoringServiceGrpc.getScoreMethod(),
          message,
          call,
          (reply, sent) ->
                  new Score(
                      new Decision(
                          request.checkpoint(),
                          reply.getDecisionId(),
                          reply.getDecisionToken().toByteArray()),
                      reply.getScore(),
                      reply.getDecision(),
                      origin(reply.getServed(), reply.getLogged(), sent)));
    } catch (ScorerException error) {
      if (request.fallback() == null || !error.unanswered()) {
        throw error;
      }
      return new Score(
          none(request.checkpoint()),
          request.fallback().score(),
          request.fallback().label(),
          fallbackOrigin(error));
    }
  }

  /** Returns the action that the policy drew. It is retried but never hedged; see the README. */
  public Action selectAction(ActionRequest request) {
    Scoring.SelectActionRequest.Builder message =
        Scoring.SelectActionRequest.newBuilder()
            .setCheckpoint(request.checkpoint())
            .setRequestId(checked(request.requestId()))
            .setNamed(named(request.requestId(), request.features()))
            .setEntity(request.entity());
    if (request.eligible() != null) {
      message.setEligible(Scoring.EligibleActions.newBuilder().addAllIds(request.eligible()));
    }
    var call = new Call(request.checkpoint(), request.requestId(), request.timeout(), false);
    try {
      return send(
          ScoringServiceGrpc.getSelectActionMethod(),
          message.build(),
          call,
          (reply, sent) ->
                  new Action(
                      new Decision(
                          request.checkpoint(),
                          reply.getDecisionId(),
                          reply.getDecisionToken().toByteArray()),
                      reply.getAction(),
                      reply.getPropensity(),
                      reply.getFactorsMap(),
                      reply.getReplayed(),
                      origin(reply.getServed(), reply.getLogged(), sent)));
    } catch (ScorerException error) {
      if (request.fallback() == null || !error.unanswered()) {
        throw error;
      }
      return new Action(
          none(request.checkpoint()), request.fallback(), 1, Map.of(), false, fallbackOrigin(error));
    }
  }

  /**
   * Reports what became known about a decision, with the decision's token. A repeated report has no further effect;
   * another value needs a higher revision.
   */
  public Report reportOutcome(Decision decision, String kind, double value, int revision) {
    return reportOutcome(decision, kind, value, revision, null);
  }

  /**
   * Reports an outcome as the other method does, and states its source: who or what reports it, and a short id, such as
   * the name of a feed. A null source is not stated.
   */
  public Report reportOutcome(
      Decision decision, String kind, double value, int revision, Scoring.OutcomeSource source) {
    if (decision.id().isEmpty()) {
      throw ScorerException.invalid(
          "the decision has no id, because the client's fallback answered; report no outcome for it", "");
    }
    Scoring.ReportOutcomeRequest.Builder message =
        Scoring.ReportOutcomeRequest.newBuilder()
            .setCheckpoint(decision.checkpoint())
            .setDecisionId(decision.id())
            .setDecisionToken(ByteString.copyFrom(decision.token()))
            .setKind(kind)
            .setValue(value)
            .setRevision(revision);
    if (source != null) {
      message.setSource(source);
    }
    return send(
        ScoringServiceGrpc.getReportOutcomeMethod(),
        message.build(),
        new Call(decision.checkpoint(), decision.id(), null, false),
        (reply, sent) ->
                new Report(
                    reply.getDuplicate(),
                    reply.getDecisionKnown(),
                    reply.getSuperseded(),
                    reply.getProven(),
                    sent));
  }

  /** Closes the connections. Calls in flight end with an error. */
  @Override
  public void close() {
    channel.shutdownNow();
    timer.shutdownNow();
  }

  /** The properties of a call that its attempts and errors share. */
  private record Call(String checkpoint, String requestId, Duration timeout, boolean mayHedge) {}

  /** Sends a request and waits for its answer, which `read` converts, given how often it was sent. */
  private <Q, R, T> T send(
      MethodDescriptor<Q, R> method, Q request, Call call, BiFunction<R, Integer, T> read) {
    Duration limit = call.timeout() == null ? timeout : call.timeout();
    Attempts.Exchange<Q, R> exchange = attempts.start(method, request, limit, call.mayHedge());
    try {
      R reply = exchange.answer.get();
      return read.apply(reply, exchange.sent.get());
    } catch (ExecutionException error) {
      throw ScorerException.of(
          Status.fromThrowable(error.getCause()), call.checkpoint(), call.requestId(), exchange.sent.get());
    } catch (InterruptedException error) {
      exchange.answer.cancel(false);
      Thread.currentThread().interrupt();
      throw new ScorerException(
          Kind.CANCELLED,
          "the calling thread was interrupted",
          call.checkpoint(),
          call.requestId(),
          exchange.sent.get());
    }
  }

  private static Decision none(String checkpoint) {
    return new Decision(checkpoint, "", new byte[0]);
  }

  private static Origin origin(Scoring.Served served, boolean logged, int attempts) {
    Source source = served.getFallbackSource().isEmpty() ? Source.MODEL : Source.SERVER_FALLBACK;
    return new Origin(
        source,
        served.getFallbackSource(),
        served.getFallbackReason(),
        served.getBundle(),
        logged,
        attempts);
  }

  private static Origin fallbackOrigin(ScorerException error) {
    String reason = error.kind().name().toLowerCase(Locale.ROOT);
    return new Origin(Source.CLIENT_FALLBACK, "client", reason, "", false, error.attempts());
  }

  private static String checked(String requestId) {
    if (!requestId.matches("[ -~]{1,64}")) {
      throw ScorerException.invalid("a request id is 1 to 64 printable ASCII characters", requestId);
    }
    return requestId;
  }

  private static Scoring.NamedFeatures named(String requestId, Map<String, ?> features) {
    Scoring.NamedFeatures.Builder named = Scoring.NamedFeatures.newBuilder();
    features.forEach(
        (name, value) -> {
          Scoring.Feature.Builder feature = named.addFeaturesBuilder().setName(name);
          if (value instanceof Boolean flag) {
            feature.setFlag(flag);
          } else if (value instanceof String category) {
            feature.setCategory(category);
          } else if (value instanceof Number number) {
            feature.setNumber(number.doubleValue());
          } else if (value != null) {
            throw ScorerException.invalid(
                "feature \"%s\" is a %s; pass a Number, a String, a Boolean or null"
                    .formatted(name, value.getClass().getSimpleName()),
                requestId);
          }
        });
    return named.build();
  }
}
