import pytest


@pytest.fixture
def write(tmp_path):
    """Writes a file of some name and returns its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write
