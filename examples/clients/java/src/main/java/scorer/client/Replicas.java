package scorer.client;

import io.grpc.Attributes;
import io.grpc.ChannelCredentials;
import io.grpc.EquivalentAddressGroup;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.NameResolverRegistry;
import io.grpc.StatusOr;
import io.grpc.TlsChannelCredentials;
import io.grpc.util.AdvancedTlsX509KeyManager;
import io.grpc.util.AdvancedTlsX509TrustManager;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.URISyntaxException;
import java.security.GeneralSecurityException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executor;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import scorer.client.ScorerClient.Tls;

/** Opens the channel to all replicas of a server. */
final class Replicas {
  private static final String SCHEME = "scorer-replicas";

  // The balancer sends calls in turn to the replicas that are connected and report SERVING.
  private static final Map<String, Object> SERVICE_CONFIG =
      Map.of(
          "loadBalancingConfig", List.of(Map.of("round_robin", Map.of())),
          "healthCheckConfig", Map.of("serviceName", "scorer.v1.ScoringService"));

  static {
    NameResolverRegistry.getDefaultRegistry().register(new ListProvider());
  }

  private Replicas() {}

  private static ChannelCredentials credentials(Tls files, ScheduledExecutorService timer)
      throws IOException, GeneralSecurityException {
    AdvancedTlsX509TrustManager trust = AdvancedTlsX509TrustManager.newBuilder().build();
    trust.updateTrustCredentials(files.ca().toFile(), 1, TimeUnit.MINUTES, timer);
    TlsChannelCredentials.Builder builder = TlsChannelCredentials.newBuilder().trustManager(trust);
    if (files.certificate() != null) {
      AdvancedTlsX509KeyManager identity = new AdvancedTlsX509KeyManager();
      identity.updateIdentityCredentials(
          files.certificate().toFile(), files.key().toFile(), 1, TimeUnit.MINUTES, timer);
      builder.keyManager(identity);
    }
    return builder.build();
  }

  static ManagedChannel connect(List<String> addresses, Tls tls, ScheduledExecutorService timer) {
    if (addresses.isEmpty()) {
      throw new IllegalArgumentException("there are no addresses; name at least one replica");
    }
    addresses.forEach(Replicas::port);
    ChannelCredentials credentials = InsecureChannelCredentials.create();
    if (tls != null) {
      try {
        credentials = credentials(tls, timer);
      } catch (IOException | GeneralSecurityException error) {
        throw new IllegalArgumentException("TLS: a file cannot be used: " + error.getMessage(), error);
      }
    }
    // One name may stand for several replicas; gRPC resolves it again when a connection is lost.
    String target = addresses.size() == 1 ? "dns:///" + addresses.get(0) : list(addresses).toString();
    ManagedChannelBuilder<?> builder =
        Grpc.newChannelBuilder(target, credentials)
            .defaultServiceConfig(SERVICE_CONFIG)
            .proxyDetector(address -> null)
            // A dead connection is found while it is idle, so that no request times out on it.
            .keepAliveTime(20, TimeUnit.SECONDS)
            .keepAliveTimeout(2, TimeUnit.SECONDS)
            .keepAliveWithoutCalls(true);
    if (tls != null && tls.serverName() != null) {
      builder.overrideAuthority(tls.serverName());
    }
    return builder.build();
  }

  private static URI list(List<String> addresses) {
    try {
      return new URI(SCHEME, "", "/" + String.join(",", addresses), null);
    } catch (URISyntaxException error) {
      throw new IllegalArgumentException("the addresses are no list of host:port: " + addresses, error);
    }
  }

  private static String host(String address) {
    return address.substring(0, Math.max(0, address.lastIndexOf(':')));
  }

  private static int port(String address) {
    String port = address.substring(address.lastIndexOf(':') + 1);
    if (host(address).isEmpty() || !port.matches("[0-9]{1,5}")) {
      throw new IllegalArgumentException("address \"" + address + "\" is no host:port");
    }
    return Integer.parseInt(port);
  }

  /** Resolves a target that lists the addresses of replicas. */
  private static final class ListProvider extends NameResolverProvider {
    @Override
    protected boolean isAvailable() {
      return true;
    }

    @Override
    protected int priority() {
      return 5;
    }

    @Override
    public String getDefaultScheme() {
      return SCHEME;
    }

    @Override
    public NameResolver newNameResolver(URI target, NameResolver.Args args) {
      if (!SCHEME.equals(target.getScheme())) {
        return null;
      }
      return new ListResolver(List.of(target.getPath().substring(1).split(",")), args.getOffloadExecutor());
    }
  }

  private static final class ListResolver extends NameResolver {
    private final List<String> addresses;
    private final Executor executor;
    private Listener2 listener;

    ListResolver(List<String> addresses, Executor executor) {
      this.addresses = addresses;
      this.executor = executor;
    }

    @Override
    public String getServiceAuthority() {
      return addresses.get(0);
    }

    @Override
    public void start(Listener2 listener) {
      this.listener = listener;
      refresh();
    }

    @Override
    public void refresh() {
      executor.execute(
          () -> {
            List<EquivalentAddressGroup> groups = new ArrayList<>();
            for (String address : addresses) {
              // Each server is verified by the host of its own address.
              Attributes attributes =
                  Attributes.newBuilder()
                      .set(EquivalentAddressGroup.ATTR_AUTHORITY_OVERRIDE, address)
                      .build();
              groups.add(
                  new EquivalentAddressGroup(
                      new InetSocketAddress(host(address), port(address)), attributes));
            }
            listener.onResult(
                ResolutionResult.newBuilder().setAddressesOrError(StatusOr.fromValue(groups)).build());
          });
    }

    @Override
    public void shutdown() {}
  }
}
