package scorer.client;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import scorer.client.ScorerClient.ActionRequest;
import scorer.client.ScorerClient.Decision;
import scorer.client.ScorerClient.Origin;
import scorer.client.ScorerClient.ScoreFallback;
import scorer.client.ScorerClient.ScoreRequest;
import scorer.v1.Scoring;

/**
 * Reads the steps of payments from the standard input, one per line, and prints each answer as a line of name=value
 * fields, separated by tabs.
 *
 * <pre>
 * score CHECKPOINT PAYMENT ATTEMPT feature=value ...
 * select CHECKPOINT PAYMENT ATTEMPT [eligible:ACTION,ACTION] feature=value ...
 * outcome CHECKPOINT PAYMENT ATTEMPT KIND VALUE [REVISION [SOURCE:ID]]
 * </pre>
 *
 * <p>Options, as --name=value: addresses (host:port,host:port), ca, certificate, key, server-name, timeout-ms,
 * attempts, hedge (off, p95 or milliseconds), concurrency, fallback-label, fallback-action.
 */
public final class Checkout {
  private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

  private final ScorerClient client;
  private final String label;
  private final String action;

  /** By checkpoint and request id. A shop stores decisions with its payments. */
  private final Map<String, Decision> decisions = new ConcurrentHashMap<>();

  private Checkout(ScorerClient client, String label, String action) {
    this.client = client;
    this.label = label;
    this.action = action;
  }

  /** Runs the program. */
  public static void main(String[] arguments) throws Exception {
    Map<String, String> given = new HashMap<>();
    for (String argument : arguments) {
      String[] parts = argument.split("=", 2);
      if (parts.length != 2 || !parts[0].startsWith("--")) {
        throw new IllegalArgumentException("argument " + argument + " is not of the form --name=value");
      }
      given.put(parts[0].substring(2), parts[1]);
    }
    var options =
        new ScorerClient.Options(
            List.of(given.getOrDefault("addresses", "127.0.0.1:7700").split(",")));
    options.timeout = Duration.ofMillis(Integer.parseInt(given.getOrDefault("timeout-ms", "250")));
    options.retry =
        new RetryPolicy(
            given.containsKey("attempts")
                ? Integer.parseInt(given.get("attempts"))
                : RetryPolicy.DEFAULT.attempts(),
            RetryPolicy.DEFAULT.base(),
            RetryPolicy.DEFAULT.cap(),
            RetryPolicy.DEFAULT.tokens());
    String hedge = given.getOrDefault("hedge", "off");
    if (hedge.equals("p95")) {
      options.hedge = RetryPolicy.HEDGE_AT_P95;
    } else if (!hedge.equals("off")) {
      options.hedge = Duration.ofMillis(Integer.parseInt(hedge));
    }
    if (given.containsKey("ca")) {
      String certificate = given.get("certificate");
      String key = given.get("key");
      options.tls =
          new ScorerClient.Tls(
              Path.of(given.get("ca")),
              certificate == null ? null : Path.of(certificate),
              key == null ? null : Path.of(key),
              given.get("server-name"));
    }
    int concurrency = Integer.parseInt(given.getOrDefault("concurrency", "1"));
    ExecutorService threads = Executors.newFixedThreadPool(concurrency);
    Semaphore places = new Semaphore(concurrency);
    try (var client = new ScorerClient(options);
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
      var program = new Checkout(client, given.get("fallback-label"), given.get("fallback-action"));
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        String[] words = line.trim().split("\\s+");
        places.acquire();
        threads.execute(
            () -> {
              try {
                program.step(words);
              } finally {
                places.release();
              }
            });
      }
      threads.shutdown();
      threads.awaitTermination(1, TimeUnit.MINUTES);
    } finally {
      threads.shutdownNow();
    }
  }

  /** Runs one line and prints its answer or its error. */
  private void step(String[] words) {
    if (words.length < 4) {
      print(List.of("error=INVALID_REQUEST", "message=a line has at least four words"));
      return;
    }
    String prefix = "step=" + words[0] + "\tid=" + words[2] + "-attempt-" + words[3];
    try {
      String id = ScorerClient.requestId(words[2], Integer.parseInt(words[3]));
      String[] rest = Arrays.copyOfRange(words, 4, words.length);
      print(List.of(prefix, call(words[0], words[1], id, rest)));
    } catch (ScorerException error) {
      print(
          List.of(
              prefix,
              "error=" + error.kind(),
              "attempts=" + error.attempts(),
              "message=" + error.detail()));
    } catch (IllegalArgumentException error) {
      print(List.of(prefix, "error=INVALID_REQUEST", "message=" + error.getMessage()));
    }
  }

  private String call(String step, String checkpoint, String id, String[] rest) {
    switch (step) {
      case "score" -> {
        ScoreFallback fallback = label == null ? null : new ScoreFallback(label, 0.5);
        var answer =
            client.score(new ScoreRequest(checkpoint, id, features(rest), "", null, fallback));
        decisions.put(checkpoint + " " + id, answer.decision());
        return "score=%s\tlabel=%s\t%s"
            .formatted(answer.score(), answer.label(), origin(answer.origin(), answer.decision()));
      }
      case "select" -> {
        List<String> eligible = null;
        if (rest.length > 0 && rest[0].startsWith("eligible:")) {
          eligible = List.of(rest[0].substring("eligible:".length()).split(","));
        }
        var answer =
            client.selectAction(
                new ActionRequest(checkpoint, id, features(rest), "", eligible, null, action));
        decisions.put(checkpoint + " " + id, answer.decision());
        return "action=%s\tpropensity=%s\treplayed=%s\t%s"
            .formatted(
                answer.action(),
                answer.propensity(),
                answer.replayed(),
                origin(answer.origin(), answer.decision()));
      }
      case "outcome" -> {
        if (rest.length < 2) {
          throw new IllegalArgumentException("an outcome has a kind and a value");
        }
        Decision none = new Decision(checkpoint, "", new byte[0]);
        var report =
            client.reportOutcome(
                decisions.getOrDefault(checkpoint + " " + id, none),
                rest[0],
                Double.parseDouble(rest[1]),
                rest.length > 2 ? Integer.parseInt(rest[2]) : 0,
                rest.length > 3 ? source(rest[3]) : null);
        return "duplicate=%s\tknown=%s\tproven=%s\tattempts=%d"
            .formatted(report.duplicate(), report.decisionKnown(), report.proven(), report.attempts());
      }
      default ->
          throw new IllegalArgumentException("step " + step + " is none of score, select, outcome");
    }
  }

  /** Reads a source, written as its kind or as KIND:ID. */
  private static Scoring.OutcomeSource source(String word) {
    String[] parts = word.split(":", 2);
    String kind = "OUTCOME_SOURCE_KIND_" + parts[0].toUpperCase(Locale.ROOT);
    return Scoring.OutcomeSource.newBuilder()
        .setKind(Scoring.OutcomeSourceKind.valueOf(kind))
        .setId(parts.length > 1 ? parts[1] : "")
        .build();
  }

  /** Reads name=value words: numbers, true and false, and categories. */
  private static Map<String, Object> features(String[] words) {
    Map<String, Object> found = new HashMap<>();
    for (String word : words) {
      if (word.startsWith("eligible:")) {
        continue;
      }
      String[] parts = word.split("=", 2);
      String text = parts.length > 1 ? parts[1] : "";
      if (text.matches("-?[0-9]+(\\.[0-9]+)?")) {
        found.put(parts[0], Double.valueOf(text));
      } else if (text.equals("true") || text.equals("false")) {
        found.put(parts[0], Boolean.valueOf(text));
      } else {
        found.put(parts[0], text);
      }
    }
    return found;
  }

  private static String origin(Origin from, Decision decision) {
    return "source=%s\tfallback=%s\treason=%s\tbundle=%s\tlogged=%s\tattempts=%d\ttoken=%d"
        .formatted(
            from.source().name().toLowerCase(Locale.ROOT),
            from.fallback(),
            from.reason(),
            from.bundle(),
            from.logged(),
            from.attempts(),
            decision.token().length);
  }

  private static void print(List<String> fields) {
    OUT.println(String.join("\t", fields));
  }
}
