// npm's certified `oidc-provider`, set up to write access tokens as Keycloak does.
// Run as `node provider.mjs <settings.json>`: prints its port once it listens.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const settings = JSON.parse(readFileSync(process.argv[2], "utf-8"));
const { default: Provider } = await import(pathToFileURL(settings.library));
const issuer = `http://127.0.0.1:${settings.port}/realms/shop`;
const lives = {};

const configuration = {
  clients: settings.clients.map(({ id, secret, grants, redirects, signed_out }) => ({
    client_id: id,
    ...(secret ? { client_secret: secret } : { token_endpoint_auth_method: "none" }),
    grant_types: grants,
    response_types: redirects.length ? ["code"] : [],
    redirect_uris: redirects,
    post_logout_redirect_uris: signed_out,
  })),
  clientBasedCORS: (_ctx, origin, client) => settings.clients.find((each) => each.id === client.clientId).origins.includes(origin),
  jwks: { keys: settings.keys },
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => "urn:wherry",
      useGrantedResource: () => true,
      getResourceServerInfo: (_ctx, _resource, client) => ({
        scope: settings.scopes.join(" "),
        audience: settings.audience,
        accessTokenTTL: settings.clients.find((each) => each.id === client.clientId).lives_s,
        accessTokenFormat: "jwt",
        jwt: { sign: { alg: settings.algorithm } },
      }),
    },
  },
  formats: {
    customizers: {
      // as Keycloak writes them: https://www.keycloak.org/docs/latest/server_admin (tokens)
      jwt(_ctx, token, jwt) {
        const client = settings.clients.find((each) => each.id === token.clientId);
        jwt.header = { typ: "JWT" };
        jwt.payload.typ = "Bearer";
        jwt.payload.azp = token.clientId;
        jwt.payload.sub ??= `service-account-${token.clientId}`;
        jwt.payload.realm_access = { roles: settings.people[token.accountId] ?? client.realm_roles };
        jwt.payload.resource_access = client.client_roles;
        return jwt;
      },
    },
  },
  issueRefreshToken: (_ctx, client) => client.grantTypeAllowed("refresh_token"), // Keycloak does not ask for offline_access
  pkce: { required: () => true },
  ttl: { ClientCredentials: (_ctx, _token, client) => lives[client.clientId] },
};
for (const { id, lives_s } of settings.clients) lives[id] = lives_s;

const provider = new Provider(issuer, configuration);
const answer = provider.callback();
const server = createServer((request, response) => {
  // the provider is mounted below its issuer, as a realm of Keycloak is
  request.originalUrl = request.url;
  request.url = request.url.replace(/^\/realms\/shop/, "") || "/";
  const asked = new URLSearchParams(request.url.split("?")[1]);
  const client = settings.clients.find((each) => each.id === asked.get("client_id"));
  if (client?.in_query) request.url = request.url.replace("response_mode=fragment&", ""); // as providers do that do not know it
  answer(request, response);
});
server.listen(settings.port, "127.0.0.1", () => console.log(server.address().port));
