// A real OpenID provider (npm oidc-provider) on 127.0.0.1 for tests. Its login page accepts any password; the login
// name chooses the user. Usage: node provider.mjs REDIRECT_URI POST_LOGOUT_URI; prints its issuer on one line.
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import path from 'node:path';

// The packages are in .build/oidc, and not in the directory of this file.
const require = createRequire(path.join(process.env.OIDC_PACKAGES, 'package.json'));
const { Provider } = await import(pathToFileURL(require.resolve('oidc-provider')));

const [redirect, afterLogout] = process.argv.slice(2);
const users = {
  alice: { groups: ['fraud-team'], email_verified: true },
  bob: { groups: ['fraud-approvers', 'fraud-team'], email_verified: true },
  root: { groups: ['platform-admins'], email_verified: true },
  eve: { groups: ['guests'], email_verified: true },
  mallory: { groups: ['fraud-team'], email_verified: false },
};
const server = createServer((request, response) => serve(request, response));
let serve;
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [
      {
        client_id: 'scorer',
        client_secret: 'a secret of thirty-two characters',
        redirect_uris: [redirect],
        post_logout_redirect_uris: [afterLogout],
        grant_types: ['authorization_code'],
        response_types: ['code'],
        token_endpoint_auth_method: 'client_secret_basic',
      },
      {
        client_id: 'agent',
        redirect_uris: ['http://127.0.0.1:1/agent'],
        grant_types: ['authorization_code'],
        response_types: ['code'],
        token_endpoint_auth_method: 'none',
        application_type: 'native',
      },
    ],
    findAccount: (context, id) =>
      users[id] && { accountId: id, claims: () => ({ sub: id, email: `${id}@example.com`, ...users[id] }) },
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: [], groups: ['groups'] },
    scopes: ['openid', 'email', 'profile', 'groups'],
    // As in the specification, claims of scopes are in the user information, not in the ID token.
    conformIdTokenClaims: true,
    cookies: { keys: ['for tests'] },
    pkce: { required: () => true },
    features: {
      devInteractions: { enabled: true },
      rpInitiatedLogout: { enabled: true },
      // Access tokens for other audiences are JWT, as agents send them.
      resourceIndicators: {
        enabled: true,
        defaultResource: () => undefined,
        getResourceServerInfo: (context, resource) => ({
          audience: resource,
          scope: 'openid',
          accessTokenFormat: 'jwt',
          accessTokenTTL: 300,
        }),
      },
    },
    ttl: { AccessToken: 300, IdToken: 300, Interaction: 300, Session: 300, Grant: 300 },
  });
  serve = provider.callback();
  console.log(`issuer ${issuer}`);
});
