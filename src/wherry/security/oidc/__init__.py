"""Identity by OpenID Connect: whether an access token is good, and which rights its claims give."""
