"""The version of the distribution; pyproject.toml and RELEASE.md read it here."""

__version__ = "0.2.0"
