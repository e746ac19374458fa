"""Who is it, and what may they: passwords, tokens, sign-in by an identity provider, scopes, rate limits."""
