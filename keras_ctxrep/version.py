"""The version of the distribution, which pyproject.toml and RELEASE.md read here, and what its extras install."""

__all__ = ["install_hint"]

__version__ = "0.2.0"


def install_hint(extra: str) -> str:
    """The command that installs what an extra of this distribution needs; it names the packages themselves.

    So it works whether the distribution was installed from a checkout or from a wheel.

    >>> print(install_hint("plot"))
    pip install "matplotlib>=3.8"
    """
    from importlib import metadata

    try:
        requirements = _requirements(extra)
    except metadata.PackageNotFoundError:  # a checkout that was not installed
        return f'pip install ".[{extra}]" in the checkout of keras_ctxrep'
    return " ".join(["pip install", *(f'"{requirement}"' for requirement in dict.fromkeys(requirements))])


def _requirements(extra: str) -> list[str]:
    import re
    from importlib import metadata

    requirements = []
    for entry in metadata.requires("keras_ctxrep") or ():
        requirement, _, marker = map(str.strip, entry.partition(";"))
        if not marker.endswith(f'extra == "{extra}"'):
            continue
        if others := re.fullmatch(r"keras_ctxrep\[(.*)\]", requirement):
            requirements += [inner for other in others[1].split(",") for inner in _requirements(other)]
        else:
            requirements.append(requirement)
    return requirements
