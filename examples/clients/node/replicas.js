import { readFileSync } from "node:fs";
import { isIPv4, isIPv6 } from "node:net";
import { fileURLToPath } from "node:url";

import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const PROTOS = fileURLToPath(new URL("../../../protos", import.meta.url));

const OPTIONS = {
  // Calls are sent in turn to the replicas that are connected.
  "grpc.service_config": JSON.stringify({ loadBalancingConfig: [{ round_robin: {} }] }),
  "grpc.service_config_disable_resolution": 1,
  "grpc.enable_http_proxy": 0,
  // A dead connection is found while it is idle, so that no request times out on it.
  "grpc.keepalive_time_ms": 20_000,
  "grpc.keepalive_timeout_ms": 2_000,
  "grpc.keepalive_permit_without_calls": 1,
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
};

/**
 * Returns a stub of the scoring service for all replicas.
 * @param {string[]} addresses
 * @param {{ca: string, certificate?: string, key?: string, serverName?: string}} [tls]
 * @param {string} [protos] The directory that contains scorer/v1.
 */
export function connect(addresses, tls, protos = process.env.PROTOS ?? PROTOS) {
  const definition = loadSync("scorer/v1/scoring.proto", { includeDirs: [protos], defaults: true, longs: Number });
  const { ScoringService } = grpc.loadPackageDefinition(definition).scorer.v1;
  const options = { ...OPTIONS };
  if (tls?.serverName) {
    options["grpc.ssl_target_name_override"] = tls.serverName;
    options["grpc.default_authority"] = tls.serverName;
  }
  return new ScoringService(target(addresses), credentials(tls), options);
}

function target(addresses) {
  // One name may stand for several replicas; gRPC resolves it again when a connection is lost.
  if (addresses.length === 1) return `dns:///${addresses[0]}`;
  const hosts = addresses.map((address) => address.replace(/:\d+$/, "").replace(/^\[|\]$/g, ""));
  if (addresses.length > 1 && hosts.every(isIPv4)) return `ipv4:${addresses.join(",")}`;
  if (addresses.length > 1 && hosts.every(isIPv6)) return `ipv6:${addresses.join(",")}`;
  throw new TypeError(`addresses ${addresses}: give one name:port, or IP addresses of one version with ports`);
}

function credentials(tls) {
  if (!tls) return grpc.credentials.createInsecure();
  const [ca, key, certificate] = [tls.ca, tls.key, tls.certificate].map((path) => path && readFileSync(path));
  return grpc.credentials.createSsl(ca, key ?? null, certificate ?? null);
}
