"""Calling models: instrumented models, budgets, prices, retries, and providers' views."""
