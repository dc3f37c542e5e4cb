"""The browser: sessions shown and answered in Chainlit. Importing this does not import it."""
