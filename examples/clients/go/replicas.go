package scorer

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // lets the balancer watch the health of each replica
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// The balancer sends calls in turn to the replicas that are connected and report SERVING.
const serviceConfig = `{
	"loadBalancingConfig": [{"round_robin": {}}],
	"healthCheckConfig": {"serviceName": "scorer.v1.ScoringService"}
}`

// TLSFiles are the PEM files of a connection.
type TLSFiles struct {
	CA          string // authorities of the servers
	Certificate string // certificate of this client, read at every handshake; empty: none
	Key         string // key of the certificate
	ServerName  string // name in the servers' certificates; empty: the host of each address
}

func (f *TLSFiles) credentials() (credentials.TransportCredentials, error) {
	authorities, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("TLS: the authorities cannot be read: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.ServerName, RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("TLS: %s contains no certificate; it must be a PEM file", f.CA)
	}
	if f.Certificate == "" && f.Key == "" {
		return credentials.NewTLS(config), nil
	}
	load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
		return &pair, err
	}
	if _, err := load(nil); err != nil {
		return nil, fmt.Errorf("TLS: certificate and key cannot be used: %w", err)
	}
	config.GetClientCertificate = load
	return credentials.NewTLS(config), nil
}

// connect returns a channel to all replicas.
func connect(addresses []string, files *TLSFiles) (*grpc.ClientConn, error) {
	secure := insecure.NewCredentials()
	if files != nil {
		var err error
		if secure, err = files.credentials(); err != nil {
			return nil, err
		}
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(secure),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithNoProxy(),
		// A dead connection is found while it is idle, so that no request times out on it.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 20 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second,
			},
			MinConnectTimeout: time.Second,
		}),
	}
	replicas := make([]resolver.Address, len(addresses))
	for i, address := range addresses {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("address %q is no host:port: %w", address, err)
		}
		// Without a configured name, each server is verified by the host of its own address.
		if files != nil && files.ServerName != "" {
			host = files.ServerName
		}
		replicas[i] = resolver.Address{Addr: address, ServerName: host}
	}
	switch len(addresses) {
	case 0:
		return nil, fmt.Errorf("there are no addresses; name at least one replica")
	case 1: // a name is resolved again when a connection is lost
		return grpc.NewClient("dns:///"+addresses[0], options...)
	}
	list := manual.NewBuilderWithScheme("scorer")
	list.InitialState(resolver.State{Addresses: replicas})
	return grpc.NewClient("scorer:///replicas", append(options, grpc.WithResolvers(list))...)
}
