"""The HTTP service: routes, security, uploads and admission control."""
